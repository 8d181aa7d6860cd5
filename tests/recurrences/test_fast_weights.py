"""Fast weights by their equations, position by position and head by head, inside transformers' own models."""

from __future__ import annotations

import pytest
import torch

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import counted
from recur_tune.recurrences.fast_weights.spec import FAST_WEIGHTS, FastWeightsSpec
from tests.models import some_tokens
from tests.models.bodies import body, hugging_face
from tests.models.heads_by_hand import ByHand
from tests.models.mechanisms import start_cost

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
rules = pytest.mark.parametrize("rule", ["linear", "delta", "gated"])


def feature(rule: str, x_D: torch.Tensor) -> torch.Tensor:
    if rule == "gated":
        return x_D / (x_D @ x_D).sqrt()
    return torch.stack([x + 1 if x > 0 else x.exp() for x in x_D])


class Memories:
    """Every key-value head's memory as the notation has it: written position by position, from what it was at the
    window's start."""

    def __init__(self, model, rule: str, layers: range, stride: int) -> None:
        self.recurrence, self.rule, self.layers, self.stride = model.recurrence, rule, layers, stride
        self.before: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self.behind: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def next_window(self) -> None:
        self.before, self.behind = self.behind, {}

    def found(self, feature_D: torch.Tensor, memory: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        taken = sum(feature_D[d] * memory[d] for d in range(len(feature_D)))
        return taken if self.rule == "gated" else taken / (feature_D @ keys)

    def mix(self, layer, q, k, v, out):
        if layer not in self.layers:
            return out
        site = self.layers.index(layer)
        for group in range(len(k)):
            self.write(site, group, k[group][: self.stride], v[group][: self.stride])
        if not self.before:
            return out
        mixed = torch.empty_like(out)
        for head in range(len(q)):
            memory = self.before[site, head * len(k) // len(q)]
            gate = 1 / (1 + (-30 * self.recurrence.gate_logits[site, head]).exp())
            for at in range(q.shape[1]):
                taken = self.found(feature(self.rule, q[head, at]), *memory)
                mixed[head, at] = gate * taken + (1 - gate) * out[head, at]
        return mixed

    def write(self, site: int, group: int, k: torch.Tensor, v: torch.Tensor) -> None:
        size = k.shape[1]
        empty = torch.zeros(size, size, dtype=k.dtype), torch.zeros(size, dtype=k.dtype)
        memory, keys = self.before.get((site, group), empty)
        share = 1.0
        if self.rule == "gated":
            memory = torch.sigmoid(30 * self.recurrence.decay_logits[site, group]) * memory
            share = 2 * torch.sigmoid(30 * self.recurrence.rate_logits[site, group]) / len(k)
        now, sums = memory.clone(), keys.clone()
        for k_D, v_D in zip(k, v, strict=True):
            feature_D, delta_D = feature(self.rule, k_D), v_D
            if self.rule != "linear" and self.before:
                delta_D = v_D - self.found(feature_D, memory, keys)
            now += share * torch.outer(feature_D, delta_D)
            sums += feature_D
        self.behind[site, group] = now, sums


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@rules
@torch.no_grad()
def test_windows_are_read_by_the_equations(rule, name, overlap):
    model = body(name, FastWeightsSpec(write_rule=rule, fast_layers=2 if rule == "linear" else "all"))
    for parameter in model.recurrence.parameters():
        parameter.copy_(torch.randn_like(parameter))
    memories = Memories(model, rule, range(1, 2) if rule == "linear" else range(3), stride=6 - overlap)
    by_hand, state = ByHand(model, memories.mix), None
    for _ in range(3):
        tokens = some_tokens(6)
        reading = model.read(tokens[None], state, overlap=overlap)
        torch.testing.assert_close(reading.top_BTK[0], by_hand.read(tokens), **CLOSE)
        state = reading.state
        memories.next_window()
        for (site, group), (memory, keys) in memories.before.items():
            torch.testing.assert_close(state[0][0, site, group], memory, **CLOSE)
            if rule != "gated":
                torch.testing.assert_close(state[1][0, site, group], keys, **CLOSE)


@rules
def test_an_untrained_memory_changes_little(rule):
    model, cost = start_cost(FastWeightsSpec(write_rule=rule))
    assert torch.allclose(
        (30 * model.recurrence.gate_logits).sigmoid(), torch.tensor(0.018, dtype=torch.float64), atol=1e-4
    )
    assert 0 < abs(cost) < 0.01


def test_an_empty_memory_is_the_plain_model_and_its_gradients():
    """Where a document begins the memory may hold anything; one that was never written is divided by 0."""
    for rule in ("linear", "delta", "gated"):
        model, tokens = body("gpt2", FastWeightsSpec(write_rule=rule)), some_tokens(2, 6)
        old = tuple(torch.full_like(one, torch.nan) for one in model.recurrence.empty(2))
        with torch.no_grad():
            expected = hugging_face(model).base_model(tokens).last_hidden_state
        for state, fresh in ((old, torch.tensor([True, True])), (model.recurrence.empty(2), None)):
            state = tuple(one.requires_grad_() for one in state)
            reading = model.read(tokens, state, fresh)
            torch.testing.assert_close(reading.top_BTK, expected, **CLOSE)
            (reading.top_BTK.square().sum() + sum(one.square().sum() for one in reading.state)).backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            assert gradients and all(gradient.isfinite().all() for gradient in gradients)
            assert all(not one.grad.any() for one in state)


@rules
def test_long_windows_leave_finite_memories(rule):
    model = body("llama", FastWeightsSpec(write_rule=rule), max_position_embeddings=300).float()
    with torch.no_grad():
        for parameter in model.recurrence.parameters():
            parameter.fill_(9.0)  # all is kept, and written at the largest rate
    state = None
    for _ in range(12):
        reading = model.read(some_tokens(1, 300), state)
        state = reading.state
    reading.top_BTK.square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.recurrence.parameters())
    assert all(one.isfinite().all() for one in state)
    if rule == "gated":
        assert state[0].abs().max() < 10


@rules
@torch.no_grad()
def test_memories_are_in_single_precision_whatever_a_window_is_read_in(rule):
    model = body("llama", FastWeightsSpec(write_rule=rule)).float()
    tokens = some_tokens(1, 12)
    exact = model.read(tokens).state
    with torch.autocast("cpu", torch.bfloat16):
        first = model.read(tokens).state
        second = model.read(tokens, first).state
    low = model.bfloat16()
    for states in (first, second, low.read(tokens).state, low.recurrence.empty(1)):
        assert [(one.dtype, one.shape) for one in states] == [(torch.float32, one.shape) for one in exact]
    for one in (*first, *second):
        assert (one != one.bfloat16()).float().mean() > 0.5  # no product was rounded


@pytest.mark.parametrize("overlap", [0, 4])
def test_without_a_correction_nothing_is_carried(overlap):
    spec = FastWeightsSpec(write_rule="linear", fast_layers=3)
    config = TrialConfig(recurrence="fast_weights", window=16, overlap=overlap, **spec.model_dump())
    base = body("llama", spec).config
    found = counted(config, base).work
    assert FAST_WEIGHTS.work(spec, base.shape, Windowing(16, overlap)) == found and found.carried == 0


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(UserError) as refusal:
        parse(TrialConfig, {"recurrence": "fast_weights", "write_rule": "hebb"})
    assert str(refusal.value) == "write_rule: 'hebb' is not 'linear', 'delta' or 'gated'."
    config = parse(TrialConfig, {"recurrence": "fast_weights", "fast_layers": 4, "window": 8})
    with pytest.raises(UserError) as refusal:
        config.check_base(body("gpt2").config.shape)
    assert str(refusal.value) == "fast_layers: 4 is not a layer of gpt2; choose one from 1 to 3, or 'all'."
