"""Which points of a front are chance, against closed forms and an independent way to Student's t."""

from __future__ import annotations

import math
import statistics

import hypothesis
import hypothesis.strategies as st
import pytest
from scipy import stats

from recur_tune.search.record.confirmation import (
    ConfirmationPlan,
    confirmation,
    is_beyond_noise,
    missing_seeds,
    plain_rival,
    points_to_confirm,
    pooled_spread,
    splits_needed,
    untried_rivals,
)
from recur_tune.search.record.state import SearchState, TrialRecord
from tests.search.record import OBJECTIVES, search, state_of, trial

SPEC = search(
    space={"recurrence": {"none": None, "pooled": {"l_ins": [1, 2]}}, "window": [100, 200, 300], "seed": 5},
    objectives=list(OBJECTIVES),
)
PLAIN, RECURRENT = {"recurrence": "none", "window": 100}, {"recurrence": "pooled", "l_ins": 1, "window": 100}


def repeat(number: int, of: TrialRecord, seed: int, perplexity: float, state: str = "complete") -> TrialRecord:
    scores = {"test": {"perplexity": perplexity}} if state == "complete" else {}
    return TrialRecord(
        number, of.params, of.costs, repeats=of.number, seed=seed, split="test", state=state, scores=scores  # type: ignore[arg-type]
    )  # fmt: skip


def confirmed(*groups: tuple[TrialRecord, list[float]]) -> SearchState:
    state = state_of(*(one for one, _ in groups))
    for one, values in groups:
        for seed, value in enumerate(values, 1):
            number = 100 * (one.number + 1) + seed
            state.repeats[number] = repeat(number, one, seed, value)
    return state


def test_a_mean_leaves_out_the_number_for_which_a_point_was_chosen() -> None:
    found = confirmation(confirmed((trial(0, 10.0, 1e6, 1e9, params=PLAIN), [20.0, 22.0, 24.0])), SPEC)
    assert found is not None
    [point] = found.points
    assert (point.mean, point.trial.value("perplexity")) == (22.0, 10.0)
    assert found.spread == pytest.approx(2.0) and found.freedom == 2
    assert point.standard_error == pytest.approx(2.0 / math.sqrt(3))


@hypothesis.given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=5), min_size=1, max_size=5))
def test_the_pooled_spread_is_that_of_all_distances_from_their_own_means(groups: list[list[float]]) -> None:
    spread, freedom = pooled_spread(groups)
    several = [group for group in groups if len(group) > 1]
    assert freedom == sum(len(group) - 1 for group in groups)
    if not several:
        assert math.isnan(spread)
    else:
        squares = sum((len(group) - 1) * statistics.variance(group) for group in several)
        assert spread == pytest.approx(math.sqrt(squares / freedom), abs=1e-6)


def test_beyond_noise_is_what_a_t_test_of_two_groups_calls_so() -> None:
    one, other = [10.0, 10.4, 9.9, 10.1], [10.6, 10.9, 10.2, 10.7]
    spread, freedom = pooled_spread([one, other])
    for shift in (-0.6, -0.3, -0.1, 0.0, 0.3, 1.0):
        moved = [value + shift for value in other]
        difference = statistics.mean(one) - statistics.mean(moved)
        told = stats.ttest_ind(one, moved).pvalue < 0.05
        assert is_beyond_noise(difference, 4, 4, spread, freedom) == told


def test_a_dearer_point_within_noise_of_a_cheaper_one_is_told_so() -> None:
    cheap, dear, far = (trial(0, 10, 1e6, 1e9), trial(1, 9, 2e6, 1e9), trial(2, 5, 3e6, 1e9))
    found = confirmation(confirmed((cheap, [10.0, 10.4]), (dear, [9.9, 10.3]), (far, [5.0, 5.1])), SPEC)
    assert found is not None
    verdicts = {point.trial.name: point.verdict for point in found.points}
    assert verdicts == {"T2": "holds", "T1": "within noise of T0, which costs no more", "T0": "holds"}
    assert [point.trial.name for point in found.points] == ["T2", "T1", "T0"], "the best first"


def test_a_point_whose_mean_a_cheaper_one_beats_was_chance() -> None:
    cheap, lucky = trial(0, 10, 1e6, 1e9), trial(1, 9, 2e6, 1e9)
    found = confirmation(confirmed((cheap, [10.0, 10.1]), (lucky, [11.0, 11.1])), SPEC)
    assert found is not None
    point = found.of(lucky)
    assert point is not None and not point.on_front
    assert point.verdict == "chance: T0 is as good and costs no more"


def test_a_plain_rival_that_was_never_on_the_front_is_beaten_and_no_chance() -> None:
    recurrent, plain = trial(0, 9, 1e6, 1e9, params=RECURRENT), trial(1, 10, 2e6, 1e9, params=PLAIN)
    found = confirmation(confirmed((recurrent, [9.0, 9.1]), (plain, [10.0, 10.1])), SPEC)
    assert found is not None
    assert [point.verdict for point in found.points] == ["holds", "plain rival: T0 beats it and costs no more"]


def test_a_cheaper_point_is_never_held_against_by_a_dearer_one() -> None:
    found = confirmation(confirmed((trial(0, 10, 1e6, 1e9), [10.0, 10.1]), (trial(1, 9, 2e6, 1e9), [9.0, 9.1])), SPEC)
    assert found is not None and [point.verdict for point in found.points] == ["holds", "holds"]


def test_one_seed_each_has_no_error_so_no_point_is_within_noise_of_another() -> None:
    cheap, dear, lucky = trial(0, 10, 1e6, 1e9), trial(1, 9, 2e6, 1e9), trial(2, 8, 3e6, 1e9)
    found = confirmation(confirmed((cheap, [10.0]), (dear, [9.99]), (lucky, [10.5])), SPEC)
    assert found is not None and math.isnan(found.spread)
    assert {point.trial.name: (point.verdict, point.no_better_than) for point in found.points} == {
        "T0": ("one seed has no standard error", ""),
        "T1": ("one seed has no standard error", ""),
        "T2": ("one seed has no standard error; T1 is no worse and costs no more", "T1"),
    }


def test_a_point_is_confirmed_once_all_its_seeds_have_ended() -> None:
    points = [trial(0, 10, 1e6, 1e9), trial(1, 9, 2e6, 1e9), trial(2, 8, 3e6, 1e9)]
    state = confirmed((points[0], [10.0]), (points[1], [9.0]), (points[2], []))
    state.repeats[900] = repeat(900, points[1], 7, 0.0, "paused")
    found = confirmation(state, SPEC)
    assert found is not None and not found.is_whole
    assert [one.name for one in found.unconfirmed] == ["T1", "T2"], "one seed is paused, one point has none"
    state.repeats[900].state = "failed"
    state.repeats[901] = repeat(901, points[2], 6, 8.0)
    whole = confirmation(state, SPEC)
    assert whole is not None and whole.is_whole


def test_what_has_not_ended_or_failed_says_nothing() -> None:
    point = trial(0, 10, 1e6, 1e9)
    state = state_of(point)
    for number, how in enumerate(("running", "failed", "paused", "waiting"), 100):
        state.repeats[number] = repeat(number, point, number, 9.0, how)
    assert confirmation(state, SPEC) is None


def test_the_rival_is_the_best_plain_trial_at_the_cost_of_a_recurrent_one() -> None:
    recurrent = trial(0, 8, 1e6, 1e9, params=RECURRENT)
    affordable = trial(1, 10, 1.04e6, 1e9, params=PLAIN)  # costs within 5 % count as one
    worse, dearer = trial(2, 11, 1e6, 1e9, params=PLAIN), trial(3, 7, 2e6, 1e9, params=PLAIN)
    trials = [recurrent, affordable, worse, dearer]
    assert plain_rival(recurrent, trials, SPEC) is affordable
    assert plain_rival(affordable, trials, SPEC) is None
    assert plain_rival(trial(9, 8, 1e3, 1e3, params=RECURRENT), trials, SPEC) is None
    assert [one.name for one in points_to_confirm(state_of(*trials), SPEC)] == ["T0", "T1", "T3"]


def test_seeds_are_fresh_and_no_more_than_asked_for() -> None:
    point = trial(0, 8, 1e6, 1e9, params=PLAIN)
    state = state_of(point)
    assert missing_seeds(state, SPEC, point, ConfirmationPlan(3)) == [6, 7, 8], "the search's own seed is 5"
    state.repeats = {10: repeat(10, point, 6, 9.0), 11: repeat(11, point, 7, 9.0, "failed")}
    assert missing_seeds(state, SPEC, point, ConfirmationPlan(3)) == [8, 9]
    assert missing_seeds(state, SPEC, point, ConfirmationPlan(1)) == []
    assert missing_seeds(state, SPEC, point, ConfirmationPlan(1, "validation")) == [8]


def test_all_points_get_a_seed_before_one_gets_the_next() -> None:
    state = state_of(trial(0, 8, 1e6, 1e9, params=PLAIN), trial(1, 7, 2e6, 1e9, params=PLAIN))
    assert [(one.name, seed) for one, seed in ConfirmationPlan(2).missing(state, SPEC)] == [
        ("T0", 6), ("T1", 6), ("T0", 7), ("T1", 7),
    ]  # fmt: skip


def test_the_split_to_be_scored_is_prepared_also_for_who_resumes() -> None:
    assert splits_needed(SearchState(), None) == ["train", "validation"]
    assert splits_needed(SearchState(), ConfirmationPlan(1, "test")) == ["train", "validation", "test"]
    point = trial(0, 8, 1e6, 1e9)
    waiting = SearchState(repeats={7: repeat(7, point, 1, 0, "waiting")})
    assert splits_needed(waiting, None) == ["train", "validation", "test"]


def test_a_recurrent_trial_without_a_plain_one_at_its_cost_has_an_untried_rival() -> None:
    dear = trial(0, 9, 9e6, 9e9, params={**PLAIN, "window": 300})
    lone, twin = trial(1, 8, 1e6, 1e9, params=RECURRENT), trial(2, 12, 9e5, 9e8, params=PLAIN)
    assert untried_rivals(state_of(dear, lone), SPEC) == {"T1": PLAIN}
    assert untried_rivals(state_of(dear, lone, twin), SPEC) == {}, "there is one"
    twin.state = "pruned"
    assert untried_rivals(state_of(dear, lone, twin), SPEC) == {}, "it was tried"
    without = search(space={"recurrence": "pooled", "l_ins": [1, 2], "window": [100, 200]}, objectives=list(OBJECTIVES))
    assert untried_rivals(state_of(trial(1, 8, 1e6, 1e9, params={"l_ins": 1, "window": 100})), without) == {}
