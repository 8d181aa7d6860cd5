"""Expected hypervolume improvement against the hypervolume itself: the closed form has to be what it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from recur_tune.search.propose import acquisition as improvement
from recur_tune.search.propose.acquisition import expected_hypervolume_improvement, expected_improvement
from recur_tune.search.record.front import hypervolume


@pytest.mark.parametrize("best, mean, std", [(1.0, 0.0, 0.3), (0.5, 0.2, 0.1), (20.0, 2.9, 0.05), (3.0, 0.0, 1e-9)])
def test_expected_improvement_is_the_integral_over_qualities(best: float, mean: float, std: float) -> None:
    # E[max(b - y, 0)] is the integral of P(y <= q) up to b.
    below, _ = quad(lambda q: norm.cdf(np.log(q), mean, std), 1e-12, best, points=[np.exp(mean)], limit=200)
    assert float(expected_improvement(np.array(best), np.array(mean), np.array(std))) == pytest.approx(below, abs=1e-6)


def test_where_nearly_nothing_is_known_an_improvement_is_a_number() -> None:
    """The mean of such a log-normal is beyond floating point; half of its qualities are near 0."""
    assert float(expected_improvement(np.array(1.0), np.array(0.0), np.array(60.0))) == pytest.approx(0.5, abs=0.01)


@st.composite
def fronts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A front, and a trial; some equal each other, some lie beyond the reference."""
    objectives = draw(st.integers(2, 4))
    numbers = st.integers(1, 12).map(lambda tenths: tenths / 10)
    row = st.lists(numbers, min_size=objectives, max_size=objectives)
    return np.array(draw(st.lists(row, max_size=6))).reshape(-1, objectives), np.array(draw(row))


def gain(front: np.ndarray, trial: np.ndarray) -> float:
    reference = np.ones(len(trial))
    return hypervolume(np.vstack([front, trial]), reference) - hypervolume(front, reference)


@given(fronts())
def test_a_quality_that_is_certain_gains_what_it_adds(made: tuple[np.ndarray, np.ndarray]) -> None:
    front, trial = made
    [found] = expected_hypervolume_improvement(
        np.log(trial[:1]), np.zeros(1), trial[None, 1:], front, np.ones(len(trial))
    )
    assert found == pytest.approx(gain(front, trial), abs=1e-9)


def test_an_uncertain_quality_gains_the_mean_of_what_it_may_add() -> None:
    front = np.array([[10.0, 4e6, 30.0], [12.0, 3e6, 40.0], [15.0, 2e6, 20.0], [11.0, 5e6, 10.0]])
    reference = np.array([20.0, 8e6, 60.0])
    costs = np.array([[2.5e6, 35.0], [7e6, 5.0], [9e6, 5.0]])
    mean, std = np.log([11.5, 12.0, 5.0]), np.array([0.2, 0.1, 0.1])
    found = expected_hypervolume_improvement(mean, std, costs, front, reference)
    chances = (np.arange(1000) + 0.5) / 1000
    for place in range(3):
        qualities = np.exp(norm.ppf(chances, mean[place], std[place]))
        added = [gain(front / reference, np.array([q, *costs[place]]) / reference) for q in qualities]
        assert found[place] == pytest.approx(np.mean(added), rel=3e-3, abs=1e-12)
    assert found[2] == 0, "a cost beyond the reference adds nothing however good it is"


def test_candidates_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    arguments = rng.normal(0, 0.1, 7), rng.uniform(0.1, 0.2, 7), rng.random((7, 2)), rng.random((5, 3)), np.ones(3)
    whole = expected_hypervolume_improvement(*arguments)
    monkeypatch.setattr(improvement, "_AT_ONCE", 1)
    assert expected_hypervolume_improvement(*arguments) == pytest.approx(whole)


def test_a_front_of_hundreds_of_points_is_thinned_and_nearly_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    quality = np.linspace(0.1, 0.9, 300)
    front = np.column_stack([quality, 1 - quality])
    arguments = np.log([0.3, 0.5]), np.full(2, 0.1), np.array([[0.6], [0.45]]), front, np.ones(2)
    exact = expected_hypervolume_improvement(*arguments)
    monkeypatch.setattr(improvement, "_MOST_CELLS", 100)
    assert expected_hypervolume_improvement(*arguments) == pytest.approx(exact, rel=0.1)


@given(fronts())
def test_points_that_others_beat_make_no_difference(made: tuple[np.ndarray, np.ndarray]) -> None:
    front, trial = made
    uncertain = np.log(trial[:1]), np.full(1, 0.2), trial[None, 1:]
    [found] = expected_hypervolume_improvement(*uncertain, front, np.ones(len(trial)))
    [more] = expected_hypervolume_improvement(*uncertain, np.vstack([front, front + 0.05]), np.ones(len(trial)))
    assert more == pytest.approx(found, abs=1e-12)
