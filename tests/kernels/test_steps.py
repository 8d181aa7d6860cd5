"""A training step with fused kernels is the plain one, in loss and in every gradient, for every mechanism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import BaseModel
from transformers import CONFIG_MAPPING

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Execution, Plan
from recur_tune.common.lora import LoraSpec
from recur_tune.common.windowing import NOT_SCORED
from recur_tune.data.batches import WindowBatch
from recur_tune.models import Windowed
from recur_tune.models.pretrained import fresh_model, recurrent_config
from recur_tune.models.trained import Trained, lay_frozen_together
from recur_tune.recurrences.blocks.spec import BlocksSpec
from recur_tune.recurrences.cache.spec import CacheSpec
from recur_tune.recurrences.fast_weights.spec import FastWeightsSpec
from recur_tune.recurrences.gated_delta.spec import GatedDeltaSpec
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.recurrences.registry import MECHANISMS
from recur_tune.recurrences.scores.spec import ScoresSpec
from recur_tune.recurrences.seam import GATE_SPEED
from recur_tune.recurrences.tokens.spec import TokensSpec
from recur_tune.recurrences.ttt.spec import TestTimeTrainingSpec

pytestmark = pytest.mark.slow

_VOCABULARY, _WINDOWS, _LANES, _POSITIONS = 21, 2, 2, 3
_CLOSE = 1e-4  # of a gradient's size: a step has many sums in single precision
_BODIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 16, "n_embd": 12, "n_layer": 1, "n_head": 2},
    "llama": {
        "max_position_embeddings": 16, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 10,
    },
}  # fmt: skip
_FUSED = Execution(fused_kernels=True)
_SPECS: dict[str, tuple[str, BaseModel | None]] = {
    "pooled, one layer": ("gpt2", PooledSpec(l_ins=1, pooling="recent", embeddings=3, width=4, depth=1, skip=True)),
    "pooled, all layers": ("llama", PooledSpec(l_ins="all", embeddings=2, width=4, depth=1)),
    "tokens": ("llama", TokensSpec(state_tokens=2)),
    "cache, in one softmax": ("gpt2", CacheSpec(cache_rows=3)),
    "cache, keydiff, 4 bits": ("gpt2", CacheSpec(cache_rows=3, cache_sinks=1, cache_keep="keydiff", cache_bits=4)),
    "cache, behind a gate": ("llama", CacheSpec(cache_rows=7, cache_join="gate")),
    "fast weights": ("llama", FastWeightsSpec(write_rule="gated")),
    "scores": ("gpt2", ScoresSpec(score_heads=2, dilation=2)),
    "gated delta": ("gpt2", GatedDeltaSpec()),
    "cache, overflow": ("llama", CacheSpec(cache_rows=1, cache_sinks=0, overflow="gated_delta")),
    "cache, scores beside": ("llama", CacheSpec(cache_rows=3, cache_sinks=0, beside="scores", score_heads=2)),
    "test-time training": ("llama", TestTimeTrainingSpec(ttt_every=1)),
    "blocks": ("gpt2", BlocksSpec(state_vectors=2, block_layer=1)),
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("family", "spec"), _SPECS.values(), ids=_SPECS)
def test_a_fused_step_is_the_plain_one(family, spec, device):
    model, batch = _model(family, spec).to(device), _batch().to(device)
    exact = _loss_and_gradients(model.double(), batch, Execution())
    found = _loss_and_gradients(model.float(), batch, _FUSED)
    # A GPU rounds what fast weights multiply to the ten bits of TF32.
    _assert_close(found, exact, 1e-2 if device.type == "cuda" and isinstance(spec, FastWeightsSpec) else _CLOSE)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("bits", [16, 4])
def test_a_fused_step_by_lora_is_the_plain_one(bits, device):
    model, batch = _model("llama", CacheSpec(cache_rows=3)), _batch().to(device)
    Trained("lora", LoraSpec(rank=2, alpha=3.0), bits=bits).apply(model)
    with torch.no_grad():
        for layer in model.to(device).body.lora:
            layer.up.normal_(std=0.3)
    lay_frozen_together(model)
    exact = _loss_and_gradients(model.double(), batch, Execution())
    _assert_close(_loss_and_gradients(model.float(), batch, _FUSED), exact, _CLOSE)


def test_a_fused_step_drops_the_same_numbers(device):
    model, batch = _model("gpt2", None, dropout=0.2).to(device), _batch().to(device)
    plain, fused = (_loss_and_gradients(model, batch, execution) for execution in (Execution(), _FUSED))
    _assert_close(fused, plain, _CLOSE)


def test_every_mechanism_is_tried() -> None:
    tried = {type(spec) for _, spec in _SPECS.values()}
    assert [name for name, one in MECHANISMS.items() if one.spec not in tried] == []


def _model(family: str, spec: BaseModel | None, dropout: float = 0.0) -> Windowed:
    """Every weight is random, biases and norms too; gates are neither open nor closed."""
    config = CONFIG_MAPPING[family](
        **_BODIES[family], vocab_size=_VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=None
    )
    model = fresh_model(recurrent_config(config, spec, dropout)).train()
    model.config.window, model.config.overlap = _POSITIONS, 1
    with torch.no_grad():
        for name, value in model.named_parameters():
            is_gate = name.startswith("recurrence.") and ("gate" in name or "logits" in name)
            value.add_(torch.randn_like(value) * (1 / GATE_SPEED if is_gate else 0.3))
        for value in () if model.recurrence is None else model.recurrence.buffers():
            value.add_(torch.randn_like(value))
    return model


def _batch() -> WindowBatch:
    """In its second lane a document ends with the first window. Each window reads the last token once more."""
    tokens = torch.randint(_VOCABULARY, (_LANES, _WINDOWS * (_POSITIONS - 1) + 2))
    inputs, targets = (
        tokens[:, begin:].unfold(1, _POSITIONS, _POSITIONS - 1)[:, :_WINDOWS].transpose(0, 1).contiguous()
        for begin in (0, 1)
    )
    targets[1, 0, 0] = NOT_SCORED
    fresh = torch.tensor([[True, True], [False, True]])
    scored = int((targets != NOT_SCORED).sum())
    return WindowBatch(inputs, targets, fresh, ("all", "some"), scored, scored)


def _loss_and_gradients(model: Windowed, batch: WindowBatch, execution: Execution) -> dict[str, torch.Tensor]:
    """By the names of parameters."""
    torch.manual_seed(1)
    loss, gradients, _ = Chain(model, Plan(_WINDOWS), execution).differentiate(batch)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {"loss": loss, **dict(zip(names, gradients, strict=True))}


def _assert_close(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], close: float) -> None:
    """Each gradient by its own size; one that is nearly nothing, by a thousandth of the largest."""
    largest = max(float(one.norm()) for one in exact.values())
    errors = {
        name: float((one.double() - exact[name].double()).norm()) / max(float(exact[name].norm()), 1e-3 * largest)
        for name, one in found.items()
    }
    assert not (wrong := {name: error for name, error in errors.items() if not error <= close}), wrong
