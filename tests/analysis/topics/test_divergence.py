"""Jensen-Shannon divergence against closed forms, and what every divergence has."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from recur_tune.analysis.topics.comparison import jensen_shannon


def distributions(count: int) -> st.SearchStrategy[np.ndarray]:
    weights = st_numpy.arrays(float, (count, 4), elements=st.floats(0, 1))
    return weights.filter(lambda rows: (rows.sum(1) > 1e-3).all()).map(lambda rows: rows / rows.sum(1, keepdims=True))


def entropy(row: np.ndarray) -> float:
    return -sum(p * math.log2(p) for p in row if p > 0)


@pytest.mark.parametrize(
    ("one", "other", "bits"),
    [
        ([0.2, 0.8], [0.2, 0.8], 0.0),
        ([1.0, 0.0], [0.0, 1.0], 1.0),
        ([1.0, 0.0], [0.5, 0.5], 1.5 - 0.75 * math.log2(3)),
        ([1.0, 0.0], [1.0, 5e-324], 0.0),
    ],
)
def test_it_is_what_the_closed_form_says(one: list[float], other: list[float], bits: float) -> None:
    assert jensen_shannon(np.array([one]), np.array([other])) == pytest.approx([bits], abs=1e-12)


@given(distributions(2))
def test_it_is_the_entropy_of_the_mean_less_the_mean_entropy(rows: np.ndarray) -> None:
    expected = entropy(rows.mean(0)) - (entropy(rows[0]) + entropy(rows[1])) / 2
    assert jensen_shannon(rows[:1], rows[1:])[0] == pytest.approx(max(expected, 0), abs=1e-9)


@given(distributions(2))
def test_it_is_the_same_from_either_side_and_from_0_to_1(rows: np.ndarray) -> None:
    there, back = jensen_shannon(rows[:1], rows[1:])[0], jensen_shannon(rows[1:], rows[:1])[0]
    assert there == pytest.approx(back, abs=1e-12) and 0 <= there <= 1
