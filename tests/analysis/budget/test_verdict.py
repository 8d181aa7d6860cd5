"""A limit is kept up to the last byte and the last part of a second."""

from __future__ import annotations

import pytest

from recur_tune.analysis.budget.measurement import Cost, verdicts


@pytest.mark.parametrize(
    ("memory", "seconds", "kept"),
    [
        (1_100, 2.5, [True, True]),
        (1_101, 2.5, [False, True]),
        (1_100, 2.51, [True, False]),
        (900, 1.0, [True, True]),
    ],
)
def test_memory_counts_by_its_difference_and_time_by_its_ratio(memory: int, seconds: float, kept: list[bool]) -> None:
    found = verdicts(Cost(memory, seconds), Cost(1_000, 2.0), more_memory=100, more_time=0.25)
    assert [one.kept for one in found] == kept
    assert [one.more for one in found] == [memory - 1_000, pytest.approx(seconds / 2 - 1)]
