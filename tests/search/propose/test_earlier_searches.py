"""The mean function from earlier searches: its weights, and that a search they mislead goes on as if without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from recur_tune.search.propose.earlier_searches import _STD, _SUM, LeaningKernel, fitted_weights
from recur_tune.search.propose.features import NEW, Features, rows_at
from recur_tune.search.propose.gaussian_process import JITTER, CurvePosterior, Standardization
from recur_tune.search.record.knowledge import EarlierCurve, EarlierSearch
from recur_tune.search.record.space_parsing import read_space

SPACE = read_space({"learning_rate": {"from": 1e-4, "to": 1e-2, "log": True}, "dropout": {"from": 0.0, "to": 0.5}})
FEATURES = Features(SPACE)
SHARES = (0.25, 0.5, 1.0)


def level(fields: dict[str, Any]) -> float:
    """Log quality at the end; a bowl."""
    rate = np.log10(fields["learning_rate"] / 2e-3)
    return float(rate**2 + 2 * (fields["dropout"] - 0.1) ** 2)


def search(name: str = "a", wrong: Callable[[float], float] = lambda end: end, trials: int = 40) -> EarlierSearch:
    """An earlier search over random configurations, whose ends may be changed."""
    rng = np.random.default_rng(0)
    fields = [SPACE.sample(rng)[1] for _ in range(trials)]
    curves = [
        EarlierCurve(one, tuple((share, float(np.exp(wrong(level(one)) - 0.1 * np.log2(share)))) for share in SHARES))
        for one in fields
    ]
    return EarlierSearch(name, tuple(curves))


def validations(count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows and log qualities of the new search, which is like the earlier one but for its scale."""
    rng = np.random.default_rng(seed)
    fields = [SPACE.sample(rng)[1] for _ in range(count)]
    rows = np.concatenate([rows_at(FEATURES(fields), share, np.arange(count)) for share in SHARES])
    values = [2 + 0.3 * level(one) - 0.03 * np.log2(share) for share in SHARES for one in fields]
    return rows, np.array(values)


@given(
    expected=st.floats(-3, 3), value=st.floats(-3, 3), variance=st.floats(0.01, 10)
)  # fmt: skip
def test_one_weight_of_one_value_in_closed_form(expected: float, value: float, variance: float) -> None:
    noise = variance + JITTER
    wanted = (expected * value / noise + _SUM / _STD**2) / (expected**2 / noise + 1 / _STD**2)
    [weight] = fitted_weights(np.array([[variance]]), np.array([[expected]]), np.array([value]))
    assert weight == pytest.approx(max(0.0, wanted), abs=1e-9)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_weights_minimise_what_they_are_to_minimise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    root, expected, values = rng.normal(size=(6, 6)), rng.normal(size=(6, 3)), rng.normal(size=6)
    covariance = root @ root.T + 0.1 * np.eye(6)

    def against(weights: np.ndarray) -> float:
        rest, away = values - expected @ weights, weights - _SUM / 3
        return float(rest @ np.linalg.solve(covariance + JITTER * np.eye(6), rest) + away @ away / _STD**2)

    weights = fitted_weights(covariance, expected, values)
    other = minimize(against, np.ones(3), bounds=[(0, None)] * 3)
    assert (weights >= 0).all() and against(weights) <= other.fun + 1e-6


def test_without_values_weights_are_the_priors() -> None:
    assert fitted_weights(np.empty((0, 0)), np.empty((0, 4)), np.empty(0)) == pytest.approx([_SUM / 4] * 4)


def test_a_search_like_the_earlier_one_leans_on_it_and_not_on_one_that_misleads() -> None:
    right, mirrored = search("right"), search("mirrored", lambda end: -end)
    kernel = LeaningKernel(FEATURES, [right, mirrored])
    kernel.posterior(*validations(12))
    assert kernel.weights[0] > 0.5 and kernel.weights[1] < 0.05
    assert kernel.in_words == f"leans on right ({kernel.weights[0]:.1f}), not on mirrored"


@pytest.mark.parametrize("seed", range(3))
def test_the_weight_of_an_earlier_search_that_misleads_falls_to_zero(seed: int) -> None:
    kernel = LeaningKernel(FEATURES, [search(wrong=lambda end: -end)])
    weights = []
    for count in (0, 2, 12):
        rows, values = validations(count, seed)
        kernel.posterior(rows, values, (2.0, 0.3))
        weights.append(kernel.weights[0])
    assert weights[0] == pytest.approx(_SUM) and weights[1] < weights[0] and weights[2] == 0


def test_without_weight_it_predicts_as_if_no_search_had_been_before() -> None:
    kernel = LeaningKernel(FEATURES, [search(wrong=lambda end: -end)])
    rows, values = validations(15)
    leaning = kernel.posterior(rows, values)
    assert kernel.weights == [0]
    alone = CurvePosterior(kernel.own.kernel, rows, values, Standardization.of(values))
    elsewhere, _ = validations(5, seed=2)
    assert np.array(leaning.predict(elsewhere)) == pytest.approx(np.array(alone.predict(elsewhere)), abs=1e-9)


def test_three_trials_beside_an_earlier_search_tell_more_than_three_alone() -> None:
    rows, values = validations(3)
    new_rows, new_values = validations(30, seed=2)
    at_end = new_rows[:, -2] == 0
    new_rows[:, -1] = NEW
    leaning = LeaningKernel(FEATURES, [search()])
    errors = []
    for kernel in (leaning, leaning.own):
        mean, std = kernel.posterior(rows, values).predict(new_rows[at_end])
        errors.append(np.abs(mean - new_values[at_end]).mean())
        assert (std > 0).all()
    assert errors[0] < errors[1] / 2


def test_further_rows_are_believed_as_if_they_had_been_there() -> None:
    rows, values = validations(6)
    kernel = LeaningKernel(FEATURES, [search()])
    posterior = kernel.posterior(rows, values)
    more_rows, more_values = validations(4, seed=3)
    more_rows[:, -1] += 6
    together = posterior.conditioned_on(more_rows, more_values)
    expected = kernel.expected(np.concatenate([rows, more_rows])) @ posterior.weights
    residuals = posterior.scale.standardize(np.concatenate([values, more_values])) - expected
    whole = CurvePosterior(kernel.own.kernel, np.concatenate([rows, more_rows]), residuals, Standardization(0.0, 1.0))
    elsewhere, _ = validations(3, seed=4)
    mean, std = together.predict(elsewhere)
    own_mean, own_std = whole.predict(elsewhere)
    scale = posterior.scale
    assert std == pytest.approx(scale.std * own_std)
    assert mean == pytest.approx(scale.mean + scale.std * (own_mean + kernel.expected(elsewhere) @ posterior.weights))


def test_a_trial_is_no_trial_of_an_earlier_search_with_the_same_number() -> None:
    kernel = LeaningKernel(FEATURES, [search()])
    rows = rows_at(FEATURES([search().curves[0].fields] * 2), 1.0, np.array([0, 1000]))
    [known], [unknown] = kernel.expected(rows)
    assert known == unknown
