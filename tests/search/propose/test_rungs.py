"""Who goes on at a rung, by feeding results: no cluster, no training."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from recur_tune.search.propose.rungs import Rungs

COSTS = [False, True]


def with_finished(*curves: tuple[float, float], cost: float = 1.0) -> Rungs:
    """Trials of one cost that have ended, by their quality at the first rung and at the end; they are numbered."""
    rungs = Rungs([10, 20], COSTS)
    for number, (first, last) in enumerate(curves):
        rungs.reach(number, 10, [first, cost])
        rungs.reach(number, 20, [last, cost])
    return rungs


def test_nobody_is_stopped_before_two_have_shown_how_curves_go_on() -> None:
    rungs = with_finished((5.0, 4.0))
    assert rungs.reach(8, 10, [500.0, 1.0])


def test_worse_at_the_same_cost_is_pruned() -> None:
    rungs = with_finished((5.0, 4.0), (6.0, 4.9), (5.5, 4.5))
    assert not rungs.reach(8, 10, [9.0, 1.0])
    assert not rungs.reach(9, 10, [9.0, 1.001])


def test_what_costs_a_little_less_than_all_others_is_not_pruned() -> None:
    rungs = with_finished((5.0, 4.0), (6.0, 4.9), (5.5, 4.5))
    assert rungs.reach(8, 10, [9.0, 0.999])


def test_a_mechanism_that_starts_as_the_plain_model_goes_on() -> None:
    """A closed gate: the same quality at the first rung, at slightly more cost, whatever others' curves do."""
    rungs = with_finished((5.0, 4.0), (6.0, 5.99), (5.5, 5.49), (5.7, 5.69))
    assert rungs.reach(8, 10, [5.0, 1.02])
    assert rungs.chance(8, 10) >= 0.5


def test_the_chance_is_students_t_by_hand() -> None:
    rungs = with_finished((5.0, 4.0), (6.0, 4.9), (5.5, 4.5))
    rungs.reach(8, 10, [5.2, 1.0])
    falls = np.log([4.0 / 5.0, 4.9 / 6.0, 4.5 / 5.5])
    spread = falls.std(ddof=1)
    by_average = student.cdf((math.log(4.0 / 5.2) - falls.mean()) / (spread * math.sqrt(4 / 3)), 2)
    as_the_best = student.cdf(math.log(5.0 / 5.2) / (spread * math.sqrt(2)), 2)
    assert rungs.chance(8, 10) == pytest.approx(max(by_average, as_the_best))


def test_curves_that_scatter_stop_less() -> None:
    alike, scattered = (
        with_finished((5.0, 4.0), (6.0, 4.8), (7.0, 5.6)),
        with_finished((5.0, 4.0), (6.0, 4.1), (7, 6.9)),
    )
    assert not alike.reach(8, 10, [6.0, 1.0])
    assert scattered.reach(8, 10, [6.0, 1.0])


def test_two_qualities_need_a_chance_in_one() -> None:
    rungs = Rungs([10, 20], [False, False, True])
    for number, factor in enumerate((1.0, 1.01, 1.02)):
        rungs.reach(number, 10, [5.0, 5.0, 1.0])
        rungs.reach(number, 20, [4.0 * factor, 4.0 * factor, 1.0])
    assert rungs.reach(8, 10, [5.0, 50.0, 1.0])
    assert not rungs.reach(9, 10, [50.0, 50.0, 1.0])


def test_the_full_budget_stops_nobody() -> None:
    rungs = Rungs([10, 20], COSTS)
    for trial in range(5):
        assert rungs.reach(trial, 20, [float(trial + 1), 1.0])


def test_a_rung_decides_once() -> None:
    rungs = with_finished((5.0, 4.0), (6.0, 4.9))
    assert rungs.reach(7, 10, [5.0, 1.0])
    assert rungs.reach(7, 12, [500.0, 1.0])  # worse since, but its rung is behind it
    assert not rungs.reach(8, 15, [500.0, 1.0])  # late to the rung, and judged there
    assert rungs.tables[10][8].tolist() == [500.0, 1.0]


@pytest.mark.parametrize("quality", [math.nan, math.inf])
def test_a_quality_that_is_no_number_is_pruned_once_others_have_one(quality: float) -> None:
    rungs = with_finished((5.0, 4.0), (6.0, 4.9))
    assert not rungs.reach(8, 10, [quality, 1.0])
    assert rungs.reach(9, 10, [5.0, 1.0]), "and says nothing of others"


def test_curves_that_are_all_alike_stop_the_worse_and_not_the_equal() -> None:
    rungs = with_finished((5.0, 4.0), (5.0, 4.0))
    assert rungs.reach(8, 10, [5.0, 1.0])
    assert not rungs.reach(9, 10, [5.1, 1.0])


rows = st.lists(st.tuples(*[st.integers(1, 9).map(float)] * 3), min_size=1, max_size=25)


@given(rows)
def test_a_trial_is_pruned_only_by_one_that_ended_better_at_no_more_cost(trials: list[tuple[float, ...]]) -> None:
    """Where all curves fall alike, the prediction is exact, and the front is never lost."""
    rungs, ended = Rungs([10, 20], [False, True, True]), list[tuple[float, ...]]()
    for number, (quality, *costs) in enumerate(trials):
        if rungs.reach(number, 10, [quality, *costs]):
            rungs.reach(number, 20, [0.8 * quality, *costs])
            ended.append((0.8 * quality, *costs))
        else:
            assert any(
                end < 0.8 * quality and all(a <= b for a, b in zip(others, costs, strict=True))
                for end, *others in ended
            )


@given(rows)
def test_a_restart_fills_the_same_tables(trials: list[tuple[float, ...]]) -> None:
    first, second = Rungs([1, 2], [False, True, True]), Rungs([1, 2], [False, True, True])
    for rungs in (first, second):
        for number, (quality, *costs) in enumerate(trials):
            rungs.reach(number, 1, [quality, *costs])
            rungs.reach(number, 2, [quality / (1 + number % 3), *costs])
    assert first.reach(99, 1, [3.0, 3.0, 3.0]) == second.reach(99, 1, [3.0, 3.0, 3.0])
    assert first.chance(99, 1) == second.chance(99, 1)
