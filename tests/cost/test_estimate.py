"""Parameters are counted without building anything, and an estimate is what a real step takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import fixed_plan
from recur_tune.bptt.step import train_step
from recur_tune.common.errors import UserError
from recur_tune.common.known_shapes import KNOWN_SHAPES, PRESETS
from recur_tune.common.shape import shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import recurrence_parameters
from recur_tune.cost.estimate import estimate
from recur_tune.cost.training_memory import track_step
from recur_tune.models import RecurrentGPT2, RecurrentGPT2Config
from recur_tune.models.pretrained import base_config
from tests.conftest import small_config, small_model
from tests.models import full_batch

GPT2S = [name for name in KNOWN_SHAPES if "gpt2" in name]
WINDOWS, SIZE = 3, 8
SHAPE = {"n_layer": 2, "n_inner": 30}
VARIANTS = [{"recurrence": "none"}, {}, {"l_ins": "all", "embeddings": 2, "depth": 0}]


def trial(**fields: Any) -> TrialConfig:
    return TrialConfig(window=SIZE, bptt_windows=WINDOWS, batch=3, width=20, precision="float32", **fields)


@pytest.mark.parametrize("name", [*GPT2S, *PRESETS])
def test_parameters_are_those_of_the_model_that_would_be_built(name):
    base = base_config(name)
    settings = {key: value for key, value in base.to_dict().items() if key != "model_type"}
    with torch.device("meta"):
        model = RecurrentGPT2(RecurrentGPT2Config(**settings, recurrence=TrialConfig().recurrence_spec.model_dump()))
    shape = shape_of(base.to_dict())
    assert shape.parameters + recurrence_parameters(TrialConfig(), shape) == model.num_parameters()
    assert shape.parameters == sum(p.numel() for p in {*model.transformer.parameters(), *model.lm_head.parameters()})


def test_a_head_of_its_own_counts_too():
    model = small_model(tie_word_embeddings=False)
    assert shape_of(model.config.to_dict()).parameters == sum(p.numel() for p in model.parameters())


def operations(run: Callable[[], object]) -> int:
    """What torch counts of a real run; it knows no fused kernel of the CPU."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("policy", ["all", "none"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_an_estimate_is_a_real_step_of_the_busier_worker(variant, policy):
    config = trial(checkpointing=policy, **variant)
    cost, model = (
        estimate(config, small_config(**SHAPE), workers=2),
        small_model(config.recurrence_spec, **SHAPE).train(),
    )
    assert cost.costs["parameters"] == sum(p.numel() for p in model.parameters())
    added = [p.numel() for name, p in model.named_parameters() if name.startswith("recurrence.")]
    assert cost.recurrence_parameters == sum(added) and bool(added) == (config.recurrence_spec is not None)
    chains = 2  # of three chains
    batch, chain = full_batch(WINDOWS, chains, SIZE), Chain(model, fixed_plan(policy, WINDOWS))
    optimizer = make_optimizer(model, 1e-3, 0.0)
    counted = operations(lambda: train_step(chain, optimizer, batch, clip_norm=1.0, precision="float32"))
    assert cost.costs["training_flops_per_token"] == pytest.approx(counted / (chains * WINDOWS * SIZE), rel=1e-12)
    # The second step: only now are there the optimiser's moments.
    assert cost.costs["peak_memory"] == pytest.approx(
        track_step(MemoryTracker(), chain, optimizer, batch, "float32"), rel=0.01
    )


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_flops_per_token_are_those_of_a_real_forward_pass(variant):
    config = trial(**variant)
    model, tokens = small_model(config.recurrence_spec, **SHAPE), torch.zeros((1, SIZE), dtype=torch.long)
    state = model.read(tokens).state
    counted = operations(lambda: model.read(tokens, state))
    for layer in range(SHAPE["n_layer"]):
        inserted = config.embeddings if config.mechanism and config.l_ins in ("all", layer + 1) else 0
        seen, square = sum(inserted + at + 1 for at in range(SIZE)), (inserted + SIZE) ** 2
        counted -= (square - seen) * 4 * model.config.n_embd  # torch charges for the whole square, products of two
    assert estimate(config, small_config(**SHAPE), workers=2).costs["flops_per_token"] == pytest.approx(
        counted / SIZE, rel=1e-12
    )


def test_what_the_base_cannot_do_is_refused_before_it_is_priced():
    with pytest.raises(UserError, match="window: 33"):
        estimate(TrialConfig(window=33), small_config())
    with pytest.raises(UserError, match="l_ins: 4"):
        estimate(TrialConfig(window=8, l_ins=4), small_config())
