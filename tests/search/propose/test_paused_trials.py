"""Which trial buys more for its tokens, a new one or one that was paused: on cases small enough to work out."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose import known_costs
from recur_tune.search.propose.candidates import NewTrial, ResumeCandidate
from recur_tune.search.propose.features import rows_at
from recur_tune.search.propose.gaussian_process import Standardization
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.propose.observations import ObservedTrial
from recur_tune.search.record.spec import SearchSpec

TOKENS = 100
REFERENCE = {"token_perplexity": 20.0, "flops_per_token": 200.0}


def price(config: TrialConfig) -> dict[str, float]:
    return {"flops_per_token": float(config.window)}


def model() -> KnownCosts:
    fields: dict[str, Any] = {
        "space": {"base": "tiny", "recurrence": "none", "window": {"from": 16, "to": 128},
                  "learning_rate": {"from": 1e-4, "to": 1e-2, "log": True}},
        "objectives": list(REFERENCE), "budget": {"tokens": TOKENS, "trials": 50}, "sampler": {"name": "known-costs"},
    }  # fmt: skip
    spec = parse(SearchSpec, fields)
    return KnownCosts(spec, price, spec.trial_config)


def trial(number: int, window: int, *qualities: float, rate: float = 1e-3, paused: bool = False) -> ObservedTrial:
    """A trial that was validated after a quarter, a half and all of its tokens, as far as it came."""
    curve = tuple(zip((25, 50, 100), qualities, strict=False))
    fields, complete = {"window": window, "learning_rate": rate}, len(qualities) == 3
    return ObservedTrial(
        number, fields, {"flops_per_token": float(window)}, curve, complete, not (complete or paused), paused
    )


ENDED = [trial(0, 64, 11.0, 10.5, 10.0), trial(1, 32, 13.2, 12.6, 12.0), trial(2, 100, 11.5, 11.0, 10.4, rate=5e-3)]


def test_what_a_paused_trial_is_worth_in_closed_form() -> None:
    """One trial has ended, with quality 10 at cost 64. A paused one at cost 80 reaches into one box alone, from there
    to the reference, where it adds what it is better than 10: E[max(10 - y, 0)] of a log-normal y."""
    sampler, paused = model(), trial(1, 80, 10.8, 10.2, paused=True)
    trials = [ENDED[0], paused]
    [worth] = sampler.rank_paused(trials, REFERENCE)
    process = sampler.expected_gains(trials, np.array([*REFERENCE.values()])).process
    [mean], [std] = process.predict(rows_at(sampler.features([paused.fields]), 1.0, [1]))
    normal, ahead = NormalDist(), (math.log(10) - mean) / std
    better = 10 * normal.cdf(ahead) - math.exp(mean + std**2 / 2) * normal.cdf(ahead - std)
    assert worth.trial == 1 and worth.gain == pytest.approx(better / 20 * (1 - 80 / 200), rel=1e-6)
    assert worth.rate == pytest.approx(worth.gain / 50), "half of its tokens are left"
    assert worth.chance == pytest.approx(normal.cdf(ahead))


def test_the_larger_expected_gain_per_token_wins() -> None:
    """Whatever is chosen, no other candidate has a larger expected gain per token."""
    chosen = []
    for latest in (9.0, 9.8, 10.2, 10.8, 12.5):
        sampler = model()
        trials = [*ENDED, trial(3, 70, latest + 0.4, latest, paused=True)]
        [worth] = sampler.rank_paused(trials, REFERENCE)
        choice = sampler.choose(trials, REFERENCE)
        new = sampler.choose([replace(one, paused=False) for one in trials], REFERENCE)
        assert isinstance(new, NewTrial) and new.gain is not None
        assert isinstance(choice, ResumeCandidate) == (worth.rate > new.gain / TOKENS)
        assert choice == (worth if isinstance(choice, ResumeCandidate) else new)
        chosen.append(type(choice))
    assert chosen[0] is ResumeCandidate and chosen[-1] is NewTrial


def test_its_own_validations_tell_how_a_trial_will_end() -> None:
    """Two paused trials of one configuration: who was better on the way is worth more."""
    first, second = model().rank_paused(
        [*ENDED, trial(3, 70, 11.0, 10.4, paused=True), trial(4, 70, 10.4, 9.8, paused=True)], REFERENCE
    )
    assert first.trial == 4 and first.gain > second.gain and first.chance > second.chance


def test_a_hopeless_trial_is_paused_for_good_and_a_good_one_continues() -> None:
    for latest, should_continue in ((30.0, False), (9.0, True)):
        trials = [*ENDED, trial(3, 70, latest + 0.1, latest)]
        assert model().should_continue(trials, REFERENCE, 3) is should_continue
        assert model().should_continue(trials, REFERENCE, 3, spent=True) is should_continue
        wanted = model().next_resume([replace(one, pending=False, paused=one.number == 3) for one in trials], REFERENCE)
        assert (wanted is not None) is should_continue


def test_a_trial_that_no_other_matches_on_costs_is_trained_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_costs, "_MIN_GAIN_RATIO", math.inf)
    cheapest, beaten = trial(3, 20, 90.0), trial(4, 33, 12.0)
    sampler = model()
    assert sampler.should_continue([*ENDED, cheapest, beaten], REFERENCE, 3), "however bad it is"
    assert not sampler.should_continue([*ENDED, cheapest, beaten], REFERENCE, 4)
    twins = [trial(5, 18, 12.0), trial(6, 18, 11.0)]
    assert not sampler.should_continue([*ENDED, *twins], REFERENCE, 5), "its twin is on its way"
    paused = replace(twins[0], pending=False, paused=True)
    assert sampler.should_continue([*ENDED, paused, twins[1]], REFERENCE, 6), "and is the last that is left there"


def test_a_trial_without_a_finite_value_is_paused_and_never_resumed() -> None:
    nothing = ObservedTrial(3, {"window": 70, "learning_rate": 1e-3}, {"flops_per_token": 70.0}, pending=True)
    assert not model().should_continue([*ENDED, nothing], REFERENCE, 3)
    assert model().rank_paused([*ENDED, replace(nothing, pending=False, paused=True)], REFERENCE) == []


def test_standardization_has_a_prior_so_that_two_equal_values_prove_little() -> None:
    expected = 2.0, 0.1
    assert Standardization.of(np.empty(0), expected) == Standardization(2.0, 0.1)
    alike = Standardization.of(np.array([2.0, 2.0]), expected)
    assert alike.mean == 2.0 and alike.std == pytest.approx(0.1 * math.sqrt(6 / 8)), "the prior counts as six values"
    many = np.random.default_rng(0).normal(5.0, 0.5, 10_000)
    assert Standardization.of(many, expected).std == pytest.approx(many.std(), rel=0.01)


def test_where_nothing_is_known_yet_the_cheapest_gains_most() -> None:
    sampler = model()
    known = [ObservedTrial(0, {"window": 64, "learning_rate": 1e-3}, {"flops_per_token": 64.0}, pending=True)]
    chosen = sampler.choose(known, {"flops_per_token": 200.0})
    assert isinstance(chosen, NewTrial) and chosen.point["window"] < 30
