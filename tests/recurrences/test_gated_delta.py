"""Gated DeltaNet's fast weights, row by row: alone, and behind a cache."""

from __future__ import annotations

import pytest
import torch

from recur_tune.common.errors import UserError
from recur_tune.common.known_shapes import KNOWN_SHAPES
from recur_tune.common.parsing import parse
from recur_tune.common.shape import shape_of
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import counted
from recur_tune.cost.inference_memory import inference_memory
from recur_tune.recurrences.cache.spec import CACHE, CacheSpec
from recur_tune.recurrences.gated_delta.chunks import CHUNK
from recur_tune.recurrences.gated_delta.rule import written
from recur_tune.recurrences.gated_delta.spec import GATED_DELTA, GatedDeltaSpec
from recur_tune.recurrences.mechanism import Held
from recur_tune.recurrences.registry import mechanism_of
from tests.models import some_tokens
from tests.models.bodies import body
from tests.models.heads_by_hand import ByHand
from tests.models.mechanisms import start_cost
from tests.models.naive import Naive, with_exact_turns
from tests.recurrences.test_cache import naive_window

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SMOL = shape_of(KNOWN_SHAPES["HuggingFaceTB/SmolLM2-135M"])


class Matrices:
    """Every key-value head's matrix as the notation has it, by layers: read as the window found it."""

    def __init__(self, own) -> None:
        self.own, self.shape = own, own.shape
        self.before, self.behind = {}, {}

    def next_window(self) -> None:
        self.before, self.behind = self.behind, {}

    def write(self, layer: int, g: int, rows: list) -> None:
        if layer not in self.own.sites:
            return
        site, size = self.own.sites.index(layer), self.shape.head_size
        matrix = self.before.get((layer, g), torch.zeros(size, size).double())
        for key, value in rows:
            x = torch.cat([one / (one.square().mean() + 1e-6).sqrt() for one in (key, value)])
            of_alpha, of_beta = x @ self.own.row_gates[site, g] + 30 * self.own.row_logits[site, g]
            alpha, beta = 1 / (1 + of_alpha.exp()), 1 / (1 + (-of_beta).exp())
            key = x[:size] / size**0.5
            matrix = alpha * matrix + beta * torch.outer(key, value - alpha * matrix.T @ key)
        self.behind[layer, g] = matrix

    def read(self, layer: int, q_THD: torch.Tensor) -> torch.Tensor:
        added_THD = torch.zeros_like(q_THD)
        if not self.before or layer not in self.own.sites:
            return added_THD
        site, heads = self.own.sites.index(layer), q_THD.shape[1]
        for t, q_HD in enumerate(q_THD):
            for head, query in enumerate(q_HD):
                found = query @ self.before[layer, head * self.shape.key_value_heads // heads]
                logit = q_HD.flatten() @ self.own.query_gates[site, head] + self.own.query_biases[site, head]
                found = found / (found.square().mean() + 1e-6).sqrt() * logit / (1 + (-logit).exp())
                added_THD[t, head] = found @ self.own.outputs[site, head]
        return added_THD


@pytest.mark.parametrize(
    ("overlap", "spec"),
    [
        (0, CacheSpec(cache_rows=7, cache_sinks=2, overflow="gated_delta")),
        (2, CacheSpec(cache_rows=2, cache_sinks=4, overflow="gated_delta", delta_every=2)),
        (2, CacheSpec(cache_rows=6, cache_sinks=1, cache_keep="keydiff", overflow="gated_delta")),
        (0, CacheSpec(cache_rows=4, cache_join="gate", cache_keep="h2o", overflow="gated_delta", delta_every=3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
@torch.no_grad()
def test_rows_that_leave_a_cache_are_written_one_after_the_other(name, overlap, spec):
    model, windowing = with_exact_turns(body(name, spec)), Windowing(5, overlap)
    text = torch.randperm(61)[: windowing.span(4)]  # keys of equal tokens would be equal
    naive, matrices, state = Naive(model), Matrices(model.recurrence.overflow), None
    kept = [[[] for _ in range(naive.groups)] for _ in naive.layers]
    for window in range(4):
        tokens = text[window * windowing.stride :][: windowing.size]
        reading = model.read(tokens[None], state, overlap=overlap)
        expected = naive_window(naive, model, spec, tokens, kept, windowing.stride, matrices)
        torch.testing.assert_close(reading.top_BTK[0], expected, **CLOSE)
        matrices.next_window()
        state = reading.state
        for (layer, g), matrix in matrices.before.items():
            site = model.recurrence.overflow.sites.index(layer)
            torch.testing.assert_close(state[2][0, site, g], matrix, **CLOSE)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_alone_every_position_is_written(name):
    model = body(name, GatedDeltaSpec(delta_every=2))
    matrices, state, stride = Matrices(model.recurrence), None, 4

    def mix(layer, q, k, v, out):
        for g in range(len(k)):
            matrices.write(layer, g, list(zip(k[g][:stride], v[g][:stride], strict=True)))
        return out + matrices.read(layer, q.transpose(0, 1)).transpose(0, 1)

    by_hand = ByHand(model, mix)
    for _ in range(3):
        tokens = some_tokens(6)
        reading = model.read(tokens[None], state, overlap=2)
        torch.testing.assert_close(reading.top_BTK[0], by_hand.read(tokens), **CLOSE)
        state = reading.state
        matrices.next_window()


@pytest.mark.parametrize(("positions", "chunk", "begins"), [(11, 4, False), (12, 4, True), (5, 64, False)])
def test_chunks_are_the_rule_for_single_positions_and_so_are_gradients(positions, chunk, begins):
    numbers = {"dtype": torch.float64, "requires_grad": True}
    before, beta = torch.randn(2, 3, 3, **numbers), torch.rand(2, positions, **numbers)
    log_alpha = torch.empty(2, positions, dtype=torch.float64).exponential_().neg().requires_grad_()
    keys = torch.nn.functional.normalize(torch.randn(2, positions, 3).double(), dim=-1)
    keys[:, 2] = keys[:, 1]  # a token that comes again
    values, matrices = torch.randn(2, positions, 3).double(), []
    for at in range(2):
        matrix = torch.zeros(3, 3).double() if begins else before[at]
        for i, key in enumerate(keys[at]):
            faded = log_alpha[at, i].exp() * matrix
            matrix = faded + beta[at, i] * torch.outer(key, values[at, i] - faded.T @ key)
        matrices.append(matrix)
    expected, weight = torch.stack(matrices), torch.randn(2, 3, 3).double()
    found = written(None if begins else before, keys, values, beta, log_alpha, chunk)
    torch.testing.assert_close(found, expected, **CLOSE)
    inputs = (beta, log_alpha) if begins else (before, beta, log_alpha)
    gradients = (torch.autograd.grad((one * weight).sum(), inputs) for one in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_many_equal_rows_leave_finite_matrices_in_single_precision():
    keys = torch.nn.functional.normalize(torch.ones(1, 300, 8), dim=-1)
    left = written(None, keys, torch.ones(1, 300, 8), torch.ones(1, 300), torch.zeros(1, 300), CHUNK)
    torch.testing.assert_close(keys[:, 0] @ left[0], torch.ones(1, 8))  # found, however often it was written


@torch.no_grad()
def test_an_untrained_one_changes_nothing():
    assert start_cost(GatedDeltaSpec())[1] == pytest.approx(0, abs=1e-12)
    spec, tokens = CacheSpec(cache_rows=4, overflow="gated_delta"), some_tokens(2, 12)
    both, alone = body("llama", spec), body("llama", CacheSpec(cache_rows=4))
    alone.load_state_dict({name.replace(".exact", ""): one for name, one in both.state_dict().items()}, strict=False)
    both.recurrence.overflow.reset(both.recurrence.overflow)
    readings = [model.read(tokens, model.read(tokens).state).top_BTK for model in (both, alone)]
    torch.testing.assert_close(*readings, **CLOSE)
    forgets = torch.nn.functional.softplus(30 * both.recurrence.overflow.row_logits[..., 0])
    assert ((forgets > 9e-5) & (forgets < 1.1e-2)).all()


@pytest.mark.parametrize("window", [100, 300])
def test_flops_of_several_chunks_are_what_torch_counts(window):
    base = body("llama", GatedDeltaSpec(), max_position_embeddings=300).config
    config = TrialConfig(recurrence="gated_delta", window=window, overlap=7)
    assert GATED_DELTA.work(GatedDeltaSpec(), base.shape, config.windowing) == counted(config, base).work


def test_a_composition_costs_what_its_parts_cost():
    spec, windowing = CacheSpec(cache_rows=96, overflow="gated_delta"), Windowing(100)
    both, exact = mechanism_of(spec), CacheSpec(cache_rows=96)
    assert both.flops(spec, SMOL, windowing) == pytest.approx(
        CACHE.flops(exact, SMOL, windowing) + GATED_DELTA.flops(GatedDeltaSpec(), SMOL, windowing)
    )
    assert both.held(spec, SMOL, windowing) == Held(30 * (96 * 2 + 64) * 3 * 64, 3)
    assert mechanism_of(exact) is CACHE and not both.stops_gradients


def test_a_matrix_in_every_layer_is_as_large_as_32_rows():
    def held(**fields) -> int:
        return inference_memory(TrialConfig(window=100, precision="bfloat16", **fields), SMOL, 0)

    rows = {"recurrence": "cache", "cache_rows": 128}
    assert held(**rows) == held(**rows | {"cache_rows": 96, "overflow": "gated_delta"})
    assert held(**rows) == held(**rows | {"cache_rows": 112, "overflow": "gated_delta", "delta_every": 2})


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(UserError) as refusal:
        parse(TrialConfig, {"recurrence": "cache", "overflow": "delta"})
    assert str(refusal.value) == "overflow: 'delta' is not 'none' or 'gated_delta'."
    with pytest.raises(UserError) as refusal:
        parse(TrialConfig, {"recurrence": "cache", "overflow": "gated_delta", "cache_layer": 2})
    assert str(refusal.value) == (
        "cache_layer: 2 is one layer, and 'gated_delta' takes the rows of all; choose 'all', or overflow 'none'."
    )
