"""Who goes on at a rung, by feeding results: no cluster, no training."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.running.rungs import Rungs, best_first, crowding_distance


def dominates(one: list[float], other: list[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


def test_the_first_to_arrive_goes_on() -> None:
    assert Rungs([10, 20], reduction=2).reach(0, 10, [9.0, 9.0])


def test_worse_at_the_same_cost_is_pruned() -> None:
    rungs = Rungs([10, 20], reduction=2)
    assert rungs.reach(0, 10, [5.0, 1.0])
    assert not rungs.reach(1, 10, [6.0, 1.0])


def test_a_cheap_trial_is_not_pruned_by_an_expensive_one() -> None:
    rungs = Rungs([10, 20], reduction=4)
    for trial in range(20):
        assert rungs.reach(trial, 10, [5.0 - trial / 10, 100.0 + trial])  # each better and dearer than the one before
    assert rungs.reach(20, 10, [50.0, 1.0])  # ten times worse, and a hundredth of the cost


def test_better_and_dearer_goes_on_too() -> None:
    rungs = Rungs([10, 20], reduction=4)
    rungs.reach(0, 10, [5.0, 1.0])
    assert rungs.reach(1, 10, [4.0, 2.0])


def test_a_beaten_trial_within_the_best_share_goes_on() -> None:
    rungs = Rungs([10, 20], reduction=2)
    rungs.reach(0, 10, [1.0, 1.0])
    for trial in range(1, 8):
        rungs.reach(trial, 10, [10.0 + trial, 10.0])
    assert rungs.reach(8, 10, [2.0, 1.0])  # only the first beats it


def test_the_full_budget_stops_nobody() -> None:
    rungs = Rungs([10, 20], reduction=2)
    for trial in range(5):
        assert rungs.reach(trial, 20, [float(trial), 1.0])


def test_a_rung_decides_once() -> None:
    rungs = Rungs([10, 20], reduction=2)
    rungs.reach(0, 10, [5.0, 1.0])
    rungs.reach(1, 10, [4.0, 1.0])
    assert rungs.reach(0, 12, [5.0, 1.0])  # beaten since, but its rung is behind it
    assert not rungs.reach(2, 15, [9.0, 1.0])  # late to the rung, and compared there
    assert rungs.tables[10][2] == [9.0, 1.0]


def test_equal_trials_do_not_stop_each_other() -> None:
    rungs = Rungs([10, 20], reduction=2)
    assert all(rungs.reach(trial, 10, [3.0, 3.0]) for trial in range(6))


vectors = st.lists(st.tuples(*[st.integers(0, 6).map(float)] * 3).map(list), min_size=1, max_size=25)


@given(vectors, st.floats(1.5, 5))
def test_only_dominated_trials_are_pruned_and_the_front_never(values: list[list[float]], reduction: float) -> None:
    rungs = Rungs([1, 2], reduction)
    for trial, vector in enumerate(values):
        goes_on = rungs.reach(trial, 1, vector)
        beaten = any(dominates(other, vector) for other in values[: trial + 1])
        assert goes_on or beaten


@given(vectors)
def test_a_restart_fills_the_same_tables(values: list[list[float]]) -> None:
    first, second = Rungs([1, 2], 2), Rungs([1, 2], 2)
    for trial, vector in enumerate(values):
        first.reach(trial, 1, vector)
    for trial, vector in enumerate(values):
        second.reach(trial, 1, vector)
    late = [3.0, 3.0, 3.0]
    assert first.tables == second.tables
    assert first.reach(99, 1, late) == second.reach(99, 1, late)


@given(vectors)
def test_order_respects_domination(values: list[list[float]]) -> None:
    order = best_first(np.array(values))
    assert sorted(order) == list(range(len(values)))
    place = {row: position for position, row in enumerate(order)}
    for a, one in enumerate(values):
        for b, other in enumerate(values):
            if dominates(one, other):
                assert place[a] < place[b]


def test_crowding_distance_by_hand() -> None:
    #  a       b    c              d     on a line: both ends infinite, the others the gap around them over the width
    values = np.array([[0.0, 10.0], [2.0, 8.0], [3.0, 7.0], [10.0, 0.0]])
    assert crowding_distance(values).tolist() == [np.inf, 0.3 + 0.3, 0.8 + 0.8, np.inf]


def test_the_lonelier_of_equal_rank_comes_first() -> None:
    assert best_first(np.array([[0.0, 10.0], [2.0, 8.0], [3.0, 7.0], [10.0, 0.0]])) == [0, 3, 2, 1]
