"""The front and its volume, against closed forms and the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.search.record.front import front, hypervolume, non_dominated, search_hypervolume
from tests.search.record import OBJECTIVES, state_of, trial

modest = settings(max_examples=80, deadline=None)
few_values = st.integers(0, 4).map(float)  # few, so that ties and duplicates are common
rows = st.integers(2, 4).flatmap(lambda width: st.lists(st.tuples(*[few_values] * width), min_size=1, max_size=12))
shares = st.floats(0.01, 1.2)
points = st.lists(st.tuples(shares, shares, shares), max_size=8)


def volume(*found: tuple[float, ...], reference: tuple[float, ...] = (1, 1, 1)) -> float:
    return hypervolume(np.array(found), reference)


def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


@modest
@given(rows)
def test_non_dominated_is_what_the_definition_says(found: list[tuple[float, ...]]) -> None:
    expected = [not any(beats(other, row) for other in found) for row in found]
    assert non_dominated(np.array(found)).tolist() == expected


@modest
@given(shares, shares, shares)
def test_one_point_dominates_a_box(a: float, b: float, c: float) -> None:
    expected = (1 - a) * (1 - b) * (1 - c) if max(a, b, c) < 1 else 0
    assert volume((a, b, c)) == pytest.approx(expected)


def test_two_points_dominate_both_boxes_less_what_they_share() -> None:
    expected = 0.8 * 0.3 * 0.5 + 0.4 * 0.9 * 0.5 - 0.4 * 0.3 * 0.5
    assert volume((0.2, 0.7, 0.5), (0.6, 0.1, 0.5)) == pytest.approx(expected)


def test_a_volume_is_measured_in_units_of_the_reference() -> None:
    assert volume((20, 2**33), reference=(40, 2**34)) == pytest.approx(0.25)


def test_points_at_or_beyond_the_reference_and_no_points_have_no_volume() -> None:
    assert volume((1, 0.1, 0.1)) == volume((1.5, 0.1, 0.1)) == 0
    assert hypervolume(np.array([]), (1, 1, 1)) == 0
    assert volume((0.5, 0.5, 0.5), (1.1, 0.01, 0.01)) == pytest.approx(0.125)


@modest
@given(points, st.tuples(shares, shares, shares), st.randoms(use_true_random=False))
def test_more_points_never_dominate_less_and_their_order_does_not_matter(
    found: list[tuple[float, ...]], added: tuple[float, ...], random: object
) -> None:
    before, after = volume(*found), volume(*found, added)
    assert 0 <= before <= after + 1e-12 and after <= 1
    assert volume(*found, added, added) == pytest.approx(after), "a duplicate adds nothing"
    random.shuffle(found)
    assert volume(*found) == pytest.approx(before)


def test_only_finite_trials_at_full_budget_are_on_the_front() -> None:
    good = trial(0, 30, 100, 100)
    ignored = [
        trial(1, 20, 10, 10, state="pruned"), trial(2, 20, 10, 10, state="running"), trial(3, None, 10, 10),
        trial(4, math.nan, 10, 10), trial(5, math.inf, 10, 10), trial(6, 20, math.nan, 10),
        trial(7, 20, 10, 10, state="failed"),
    ]  # fmt: skip
    assert front([*ignored, good], OBJECTIVES) == [good]
    assert front(ignored, OBJECTIVES) == front([], OBJECTIVES) == []


def test_the_best_quality_is_first_and_of_equal_trials_one_is_on_the_front() -> None:
    trials = [
        trial(3, 30, 10, 50),
        trial(1, 20, 90, 50),
        trial(2, 30, 10, 50),
        trial(0, 31, 10, 50),
        trial(4, 25, 50, 50),
    ]
    for objectives in (OBJECTIVES, OBJECTIVES[::-1]):
        assert [found.name for found in front(trials, objectives)] == ["T1", "T4", "T2"]


def test_a_search_has_a_volume_once_its_reference_is_known() -> None:
    state = state_of(trial(0, 20, 50, 25), trial(1, 20, 10, 10, state="pruned"))
    state.reference = {"perplexity": 40, "flops_per_token": 100}
    assert search_hypervolume(state, OBJECTIVES) is None
    state.reference["peak_memory"] = 100
    assert search_hypervolume(state, OBJECTIVES) == pytest.approx(0.5 * 0.5 * 0.75)
    state.trials.clear()
    assert search_hypervolume(state, OBJECTIVES) == 0
