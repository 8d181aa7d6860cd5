"""LoRA: gradients are autograd's on a model that peft wrapped, step 0 is the base, and merging changes nothing."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.func import functional_call

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Plan
from recur_tune.common.lora import LoraSpec
from recur_tune.common.windowing import NOT_SCORED
from recur_tune.models import WindowedDecoder
from recur_tune.models.pretrained import load_base
from recur_tune.models.trained import Trained, lay_frozen_together, merged
from recur_tune.ops.lora import LoraLayer
from recur_tune.recurrences.cache.spec import CacheSpec
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.models import full_batch, some_tokens
from tests.models.bodies import BODIES, body, hugging_face
from tests.models.mechanisms import SPECS

LORA = LoraSpec(rank=3, alpha=5.0)
_MODULES = {
    "gpt2": {"attention": ["c_attn", "attn.c_proj"], "mlp": ["c_fc", "mlp.c_proj"]},
    "llama": {"attention": ["q_proj", "k_proj", "v_proj", "o_proj"], "mlp": ["gate_proj", "up_proj", "down_proj"]},
}


def adapted(name: str, spec: object = None, lora: LoraSpec = LORA, random: bool = True, **changes: object):
    """A body in double precision that learns by LoRA, whose matrices are all random."""
    model = body(name, spec, **changes)
    Trained("lora", lora).apply(model)
    lay_frozen_together(model)
    if random:
        with torch.no_grad():
            for layer in model.body.lora:
                layer.up.normal_(std=0.3)
    return model


def layers_of(model: nn.Module) -> dict[str, LoraLayer]:
    return {name: one for name, one in model.named_modules() if isinstance(one, LoraLayer)}


def found_by_chain(model: WindowedDecoder, batch, kept: int = 1) -> dict[str, torch.Tensor]:
    chain = Chain(model, Plan(kept))
    found = chain.differentiate(batch)
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[one]: total.clone() for one, total in zip(chain.trained, found.gradients, strict=True)}


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=NOT_SCORED, reduction="sum"
    )


def by_peft(model: WindowedDecoder, lora: LoraSpec) -> nn.Module:
    """transformers' own model with the same weights, in which peft has put the same LoRA."""
    modules = _MODULES["gpt2" if model.config.shape.family == "gpt2" else "llama"]
    wanted = [name for part, names in modules.items() if lora.has(part) for name in names]
    settings = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=wanted, lora_dropout=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a Conv1D's weight is the other way round
        wrapped = get_peft_model(hugging_face(merged_without(model)), settings).double()
    own = dict(wrapped.named_modules())
    with torch.no_grad():
        for name, layer in layers_of(model).items():
            theirs = own[f"base_model.model.{name.removesuffix('.lora')}"]
            theirs.lora_A["default"].weight.copy_(layer.down)
            theirs.lora_B["default"].weight.copy_(layer.up)
    return wrapped


def merged_without(model: WindowedDecoder) -> WindowedDecoder:
    """The base alone."""
    ups = {layer: layer.up.detach().clone() for layer in model.body.lora}
    with torch.no_grad():
        for layer in ups:
            layer.up.zero_()
        plain = merged(model)
        for layer, up in ups.items():
            layer.up.copy_(up)
    return plain


@pytest.mark.parametrize(
    ("name", "targets"),
    [*((name, "all") for name in BODIES), ("gpt2", "mlp"), ("llama", "attention"), ("qwen3", "mlp")],
)
def test_gradients_are_autograds_on_a_model_that_peft_wrapped(name: str, targets: str) -> None:
    lora = LORA._replace(targets=targets)
    model, batch = adapted(name, lora=lora), full_batch(1, 2, 9)
    ours, wrapped = found_by_chain(model, batch), by_peft(model, lora)
    cross_entropy(wrapped(batch.inputs_WBT[0]).logits, batch.targets_WBT[0]).backward()
    theirs = {name: parameter.grad for name, parameter in wrapped.named_parameters() if parameter.requires_grad}
    assert len(ours) == len(theirs) > 0
    for name, total in ours.items():
        place, _, matrix = name.rpartition(".lora.")
        other = theirs[f"base_model.model.{place}.lora_{'A' if matrix == 'down' else 'B'}.default.weight"]
        torch.testing.assert_close(total, other, rtol=1e-8, atol=1e-9 * float(1 + other.abs().max()))


def by_autograd(model: WindowedDecoder, batch) -> Mapping[str, torch.Tensor]:
    """The gradients of a chain by autograd through weights W + s B A, window after window."""
    base = merged_without(model)
    learns = {name: one for name, one in model.named_parameters() if one.requires_grad}
    inputs_first = {id(one): part.inputs_first for part in model.body.projections for one in part.lora}
    changed = {
        name.removesuffix("lora") + "weight": model.get_parameter(name.removesuffix("lora") + "weight")
        + layer.change(inputs_first[id(layer)])
        for name, layer in layers_of(model).items()
    }
    given = {name: one for name, one in learns.items() if ".lora." not in name} | changed

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = base

        def forward(self) -> torch.Tensor:
            state, losses = None, []
            for window, tokens_BT in enumerate(batch.inputs_WBT):
                if base.recurrence.stops_gradients and state is not None:
                    state = tuple(one.detach() for one in state)
                last = window == len(batch.inputs_WBT) - 1
                reading = base.read(tokens_BT, state, leave_state=not last)
                state = reading.state
                losses.append(cross_entropy(base.logits(reading.top_BTK), batch.targets_WBT[window]))
            return torch.stack(losses).sum()

    loss = functional_call(Text(), {f"model.{name}": one for name, one in given.items()}, ())
    found = torch.autograd.grad(loss, list(learns.values()), allow_unused=True)
    return dict(zip(learns, found, strict=True))


@pytest.mark.parametrize(
    ("name", "spec", "kept"),
    [
        *(("llama", spec, 1 + number % 3) for number, spec in enumerate(SPECS.values())),
        ("gpt2", PooledSpec(l_ins="all", embeddings=2, width=8, depth=1), 2),
        ("gpt2", CacheSpec(cache_rows=7), 1),
        ("qwen3", PooledSpec(l_ins=2, width=8, depth=1), 3),
    ],
    ids=str,
)
def test_beside_every_mechanism_gradients_are_autograds(name: str, spec: object, kept: int) -> None:
    model, batch = adapted(name, spec), full_batch(3, 2, 6)
    ours, theirs = found_by_chain(model, batch, kept), by_autograd(model, batch)
    assert ours.keys() == theirs.keys() and any("recurrence." in name for name in ours)
    for name, total in ours.items():
        other = torch.zeros_like(total) if theirs[name] is None else theirs[name]
        torch.testing.assert_close(total, other, rtol=1e-7, atol=1e-8 * float(1 + other.abs().max()))


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_step_0_is_the_base_and_a_merged_model_what_was_trained(name: str) -> None:
    tokens, spec = some_tokens(2, 14), CacheSpec(cache_rows=4)
    torch.manual_seed(3)
    base = body(name, spec)
    base.config.window = 7
    before = base(tokens).logits
    Trained("lora", LORA).apply(base)
    assert torch.equal(base(tokens).logits, before)
    for layer in base.body.lora:
        layer.up.normal_(std=0.3)
    after = base(tokens).logits
    assert (after - before).abs().max() > 0.01
    whole = merged(base)
    assert not whole.body.lora and whole.config.recurrence == base.config.recurrence
    torch.testing.assert_close(whole(tokens).logits, after, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kept", [1, 3])
def test_with_dropout_gradients_are_the_slope_of_the_loss(kept: int) -> None:
    """Along a random direction, with the same masks; a recomputed window has those of its first reading."""
    spec = PooledSpec(l_ins="all", embeddings=2, width=8, depth=1)
    model, batch = adapted("llama", spec, LORA._replace(dropout=0.4)).train(), full_batch(3, 2, 6)
    chain, step = Chain(model, Plan(kept)), 1e-6

    def loss_at(shift: float) -> float:
        with torch.no_grad():
            for parameter, way in zip(chain.trained, ways, strict=True):
                parameter += shift * way
        torch.manual_seed(7)
        found = chain.differentiate(batch)
        gradients[:] = [one.clone() for one in found.gradients]
        return float(found.loss)

    ways, gradients = [torch.randn_like(parameter) for parameter in chain.trained], list[torch.Tensor]()
    assert loss_at(0.0) != pytest.approx(float(Chain(model.eval(), Plan(kept)).differentiate(batch).loss), rel=1e-4)
    model.train()
    slope = (loss_at(step) - loss_at(-2 * step)) / (2 * step)
    loss_at(step)
    expected = sum(float((one * way).sum()) for one, way in zip(gradients, ways, strict=True))
    assert slope == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("trained", [Trained(), Trained("lora", LORA), Trained("lora", LORA, bfloat16=True)], ids=str)
def test_weights_are_placed_in_the_dtype_in_which_they_are_held(trained: Trained, tmp_path: Path) -> None:
    """From files in bfloat16, of several shards: frozen matrices as they are, everything else in single precision."""
    whole = body("llama, tied, with biases").bfloat16()
    whole.config.recurrence = None
    hugging_face(whole).save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model, told = load_base(str(tmp_path), None, as_stored=True), list[tuple[int, int]]()
    assert {one.dtype for one in model.parameters()} == {torch.bfloat16}
    trained.apply(model, torch.device("cpu"), lambda done, total: told.append((done, total)))
    again = load_base(str(tmp_path), None)
    for name, weight in again.named_parameters():
        own = model.get_parameter(name)
        is_short = trained.bfloat16 and weight.ndim > 1
        assert own.dtype == (torch.bfloat16 if is_short else torch.float32) and torch.equal(own.float(), weight)
    assert model.lm_head.weight is model.body.tokens.weight and told[-1][0] == told[-1][1]
    assert {one.dtype for layer in model.body.lora for one in layer.parameters()} <= {torch.float32}


@pytest.mark.parametrize("spec", ["pooled, all layers", "cache, behind a gate", "cache, keydiff", "scores, dilated"])
def test_a_base_held_in_bfloat16_is_trained_as_one_that_is_cast_in_every_step(spec: str) -> None:
    model, batch = body("qwen2", SPECS[spec]).float().train(), full_batch(3, 2, 6)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
    found = []
    for held_short in (False, True):
        one = copy.deepcopy(model)
        torch.manual_seed(2)
        Trained("lora", LORA, held_short).apply(one)
        lay_frozen_together(one)
        for layer in one.body.lora:
            nn.init.normal_(layer.up, std=0.3)
        with torch.autocast("cpu", torch.bfloat16):
            found.append(found_by_chain(one, batch, kept=2))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0]) and found[0]
