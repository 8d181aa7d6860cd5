"""A cache with another mechanism beside it, in loops over a whole text, and what parts do without a pretrained body."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recur_tune.common.errors import UserError
from recur_tune.common.known_shapes import KNOWN_SHAPES
from recur_tune.common.parsing import parse
from recur_tune.common.shape import shape_of
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.recurrences.blocks.spec import BLOCKS, BlocksSpec
from recur_tune.recurrences.cache.spec import CACHE, CacheSpec
from recur_tune.recurrences.fast_weights.spec import FastWeightsSpec
from recur_tune.recurrences.gated_delta.spec import GATED_DELTA, GatedDeltaSpec
from recur_tune.recurrences.registry import mechanism_of
from recur_tune.recurrences.scores.spec import SCORES, ScoresSpec
from recur_tune.recurrences.tokens.spec import TokensSpec
from tests.models import some_tokens
from tests.models.bodies import body
from tests.models.heads_by_hand import ByHand
from tests.models.naive import Naive, with_exact_turns
from tests.recurrences.test_cache import naive_window
from tests.recurrences.test_scores import KINDS, WholeText

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SMOL = shape_of(KNOWN_SHAPES["HuggingFaceTB/SmolLM2-135M"])


@pytest.mark.parametrize(
    ("overlap", "spec"),
    [
        (0, CacheSpec(cache_rows=7, cache_sinks=0, beside="scores", score_heads=3, dilation=2)),
        (2, CacheSpec(cache_rows=4, cache_sinks=1, beside="scores", score_heads=4, dilation=3)),
        (2, CacheSpec(cache_rows=8, cache_keep="keydiff", cache_join="gate", beside="scores", score_heads=2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
@torch.no_grad()
def test_scores_beside_a_cache_have_the_lags_of_the_whole_text(name, overlap, spec):
    model, windowing = with_exact_turns(body(name, spec)), Windowing(5, overlap)
    tokens_T = torch.randperm(61)[: windowing.span(4)]  # keys of equal tokens would be equal
    kinds = KINDS[spec.score_heads]
    text = WholeText(model.recurrence.beside, kinds, spec.dilation, windowing.stride)
    naive, state = Naive(model), None
    kept = [[[] for _ in range(naive.groups)] for _ in naive.layers]
    for window in range(4):
        tokens = tokens_T[window * windowing.stride :][: windowing.size]
        reading = model.read(tokens[None], state, overlap=overlap)
        expected = naive_window(naive, model, spec, tokens, kept, windowing.stride, mix=text.mix)
        torch.testing.assert_close(reading.top_BTK[0], expected, **CLOSE)
        text.next_window()
        state = reading.state


@torch.no_grad()
def test_a_cache_of_all_rows_with_scores_is_one_long_window():
    spec = CacheSpec(cache_rows=12, cache_sinks=0, beside="scores", score_heads=4, dilation=2)
    model, tokens = with_exact_turns(body("llama", spec)), some_tokens(18)
    model.recurrence.exact.offsets.zero_()
    text = WholeText(model.recurrence.beside, KINDS[4], dilation=2, stride=18)
    by_hand = ByHand(model, text.mix)
    with_exact_turns(by_hand.plain)
    expected, state = by_hand.read(tokens), None
    for begin in range(0, 18, 6):
        reading = model.read(tokens[None, begin : begin + 6], state)
        torch.testing.assert_close(reading.top_BTK[0], expected[begin : begin + 6], **CLOSE)
        state = reading.state


@pytest.mark.parametrize("overlap", [0, 20])
def test_a_composition_costs_what_its_parts_cost(overlap):
    own_fields = {"cache_rows": 96, "cache_bits": 4}
    spec = CacheSpec(**own_fields, overflow="gated_delta", beside="blocks", state_vectors=5)
    parts = [(CACHE, CacheSpec(**own_fields)), (GATED_DELTA, GatedDeltaSpec()), (BLOCKS, BlocksSpec(state_vectors=5))]
    both, windowing = mechanism_of(spec), Windowing(100, overlap)
    for cost in ("flops", "state_floats"):
        given = (SMOL, windowing) if cost == "flops" else (SMOL,)
        expected = sum(getattr(one, cost)(own, *given) for one, own in parts)
        assert getattr(both, cost)(spec, *given) == pytest.approx(expected)
    held = [one.held(own, SMOL, windowing) for one, own in parts if one.held]
    state = GATED_DELTA.state_floats(GatedDeltaSpec(), SMOL)
    assert both.held(spec, SMOL, windowing) == (
        sum(one.as_read for one in held) + state,
        sum(one.single for one in held),
        sum(one.quantised for one in held),
    )
    assert [*both.parts] == [one for one, _ in parts] and both.from_the_start and not both.stops_gradients


def test_beside_a_random_body_mechanisms_start_as_their_sources_do():
    def begun(spec):
        recurrence = body("llama", spec).recurrence
        for module in recurrence.modules():
            recurrence.reset(module)
        closed = {name: one.detach().clone() for name, one in recurrence.named_parameters()}
        recurrence.reset_from_scratch()
        return {name: one for name, one in recurrence.named_parameters() if not torch.equal(one, closed[name])}

    both = begun(CacheSpec(cache_rows=5, overflow="gated_delta", beside="scores", score_heads=4))
    assert both.keys() == {"overflow.outputs", "beside.gate_logits"}
    gates = 30 * both["beside.gate_logits"]
    assert gates.abs().max() < 3 and gates.min() < -0.5 and gates.max() > 0.5
    assert begun(ScoresSpec(score_heads=4)).keys() == {"gate_logits"}
    assert [(one == 0).all() for one in begun(CacheSpec(cache_join="gate")).values()] == [True]
    assert [(one == 0).all() for one in begun(FastWeightsSpec()).values()] == [True]
    [projection] = begun(BlocksSpec()).values()
    assert float(projection.detach().std()) == pytest.approx(0.02, rel=0.2)
    assert begun(TokensSpec()).keys() == {"read_NMK", "scale_K"}
    assert not begun(CacheSpec())  # as in Transformer-XL


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(UserError) as refusal:
        parse(TrialConfig, {"recurrence": "cache", "beside": "ttt"})
    assert str(refusal.value) == "beside: 'ttt' is not 'none', 'scores' or 'blocks'."
    config = parse(TrialConfig, {"recurrence": "cache", "beside": "scores", "score_heads": 5, "window": 8})
    with pytest.raises(UserError) as refusal:
        config.check_base(replace(SMOL, heads=4))
    assert str(refusal.value) == "score_heads: 5 are more than gpt2 has in a layer; choose from 1 to 4."
    assert SCORES.check(config.recurrence_spec, SMOL, "a base") is None


def test_a_trial_has_the_fields_of_the_second_parts_that_it_has() -> None:
    fields = {"score_heads", "state_vectors", "delta_every"}
    assert not fields & TrialConfig(recurrence="cache").plain_values().keys()
    both = TrialConfig(recurrence="cache", beside="scores", overflow="gated_delta")
    assert fields & both.plain_values().keys() == {"score_heads", "delta_every"}
    assert "score_heads" in TrialConfig(recurrence="scores").plain_values()
