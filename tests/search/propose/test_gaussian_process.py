"""The process of learning curves: its derivatives, and what its parts are for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from threadpoolctl import threadpool_info, threadpool_limits

from recur_tune.search.propose.features import NEW, rows_at
from recur_tune.search.propose.gaussian_process import (
    JITTER,
    CurveKernel,
    CurvePosterior,
    FittedKernel,
    Standardization,
    default_kernel,
)


def curves(rng: np.random.Generator, trials: int, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Trials over two numbers and a category that fall with tokens; each has an offset that no feature explains."""
    features = np.column_stack([rng.random((trials, 2)), np.eye(2)[rng.integers(0, 2, trials)]])
    level = 2 + (features[:, 0] - 0.3) ** 2 + 0.3 * features[:, 2] + rng.normal(0, offset, trials)
    rows, values = [], []
    for share in (0.25, 0.5, 1.0):
        rows.append(rows_at(features, share, np.arange(trials)))
        values.append(level - 0.2 * np.log2(share))
    return np.concatenate(rows), np.concatenate(values)


GROUPS = np.array([0, 1, 2, 2])


def test_derivatives_by_differences() -> None:
    rows, _ = curves(np.random.default_rng(0), 4)
    kernel = default_kernel(GROUPS)
    _, slopes = kernel(rows, eval_gradient=True)
    assert slopes.shape == (12, 12, kernel.n_dims)
    for place in range(kernel.n_dims):
        step = np.zeros(kernel.n_dims)
        step[place] = 1e-5
        more, less = (kernel.clone_with_theta(kernel.theta + sign * step)(rows) for sign in (1, -1))
        assert slopes[:, :, place] == pytest.approx((more - less) / 2e-5, abs=1e-6)


def test_the_diagonal_is_the_matrix_less_the_scatter_of_a_validation() -> None:
    rows, _ = curves(np.random.default_rng(0), 3)
    kernel = default_kernel(GROUPS)
    assert np.diag(kernel(rows)) - kernel.noise == pytest.approx(kernel.diag(rows))
    assert kernel(rows, rows) == pytest.approx(kernel(rows) - kernel.noise * np.eye(len(rows)))


def test_a_covariance_is_the_formula_of_two_rows() -> None:
    """One pair at a time: the matrix compares only distinct values, and all of them together."""
    rows, _ = curves(np.random.default_rng(0), 4)
    rows = np.concatenate([rows, rows[:2]])
    kernel = default_kernel(GROUPS)

    def matern(squares: float) -> float:
        distance = np.sqrt(5 * squares)
        return float((1 + distance + distance**2 / 3) * np.exp(-distance))

    def formula(one: np.ndarray, other: np.ndarray) -> float:
        squares = [
            float((((one - other)[:-2][group == GROUPS] / kernel.scales[group]) ** 2).sum()) for group in range(3)
        ]
        alike = matern(sum(squares)) + kernel.main * float(np.mean([*map(matern, squares)]))
        line = (1 + one[-2] / 3) * (1 + other[-2] / 3)
        trend = np.exp(-(((one - other)[-2] / kernel.time) ** 2) / 2) + line
        own = kernel.offset * (one[-1] == other[-1])
        return float(alike * (kernel.level + kernel.slope * line) + kernel.trend * trend + own)

    direct = np.array([[formula(one, other) for other in rows[3:]] for one in rows])
    assert kernel(rows, rows[3:]) == pytest.approx(direct, rel=1e-12)


def test_a_posterior_is_scikit_learns_and_so_is_one_with_further_rows() -> None:
    rows, values = curves(np.random.default_rng(0), 12, offset=0.1)
    elsewhere, _ = curves(np.random.default_rng(1), 5)
    elsewhere[:, -1] = NEW
    kernel, scale = default_kernel(GROUPS), Standardization.of(values[:20])
    grown = CurvePosterior(kernel, rows[:20], values[:20], scale).conditioned_on(rows[20:], values[20:])
    whole = GaussianProcessRegressor(kernel, alpha=JITTER, optimizer=None).fit(rows, scale.standardize(values))
    mean, std = whole.predict(elsewhere, return_std=True)
    _, covariance = whole.predict(elsewhere, return_cov=True)
    for posterior in (CurvePosterior(kernel, rows, values, scale), grown):
        assert posterior.standard_mean(elsewhere) == pytest.approx(mean)
        assert posterior.mean(elsewhere) == pytest.approx(scale.mean + scale.std * mean)
        assert np.array(posterior.predict(elsewhere)) == pytest.approx(
            np.array([scale.mean + scale.std * mean, scale.std * std])
        )
        assert posterior.predict_jointly(elsewhere)[1] == pytest.approx(scale.std**2 * covariance, abs=1e-9)


def test_full_budgets_are_predicted_from_curves_of_others() -> None:
    rows, values = curves(np.random.default_rng(0), 30)
    new_rows, new_values = curves(np.random.default_rng(1), 10)
    at_end = new_rows[:, -2] == 0
    new_rows[:, -1] = NEW
    mean, std = FittedKernel(GROUPS).posterior(rows, values).predict(new_rows[at_end])
    assert np.abs(mean - new_values[at_end]).max() < 0.05
    assert (std > 0).all()


def test_a_first_validation_tells_of_its_own_trial_alone() -> None:
    """Two trials of the same configuration: the one that began badly is expected to end so, a third is not."""
    rows, values = curves(np.random.default_rng(0), 20, offset=0.2)
    kernel = FittedKernel(GROUPS)
    process = kernel.posterior(rows, values)
    features = np.array([[0.5, 0.5, 1.0, 0.0]])
    first, end = rows_at(features, 0.25, [77]), rows_at(features, 1.0, [77])
    [before], [unsure] = process.predict(end)
    [usual], _ = process.predict(first)
    after = process.conditioned_on(first, np.array([usual + 0.3]))
    [expected], [surer] = after.predict(end)
    [other], _ = after.predict(rows_at(features, 1.0, [NEW]))
    assert expected == pytest.approx(before + 0.3, abs=0.1) and surer < unsure
    assert other < (before + expected) / 2


def test_a_curve_that_falls_fast_is_expected_to_end_ahead() -> None:
    """The second trial is behind at the first rung and level at the second: its slope tells that it ends ahead."""
    features = np.array([[0.2, 0.5, 1.0, 0.0], [0.8, 0.5, 1.0, 0.0]])
    rows = np.concatenate([rows_at(features, share, [0, 1]) for share in (0.25, 0.5)])
    process = FittedKernel(GROUPS).posterior(rows, np.array([2.64, 2.66, 2.61, 2.61]))
    [steady, fast], _ = process.predict(rows_at(features, 1.0, [0, 1]))
    assert fast < steady - 0.01 and fast < 2.59, "it goes on falling"


def test_trials_that_begin_alike_may_end_far_apart() -> None:
    features = np.random.default_rng(0).random((2, 4))
    kernel = default_kernel(GROUPS)
    first, end = (kernel(rows_at(features, share, [0, 1])) for share in (0.25, 1.0))
    apart = [matrix[0, 0] + matrix[1, 1] - 2 * matrix[0, 1] for matrix in (first, end)]
    assert apart[1] > 1.3 * apart[0]


def test_what_is_good_alone_is_expected_to_be_better_together() -> None:
    features = np.array([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    process = FittedKernel(GROUPS).posterior(rows_at(features, 1.0, np.arange(4)), np.array([2.7, 2.6, 2.6, 2.7]))
    [both], _ = process.predict(rows_at(np.array([[1.0, 1.0, 1.0, 0.0]]), 1.0, NEW))
    assert both < 2.59


def test_hyperparameters_are_fitted_when_there_is_a_tenth_more() -> None:
    rows, values = curves(np.random.default_rng(0), 20)
    learned = FittedKernel(GROUPS)
    kernels = []
    for count in (20, 21, 22, 40):
        learned.posterior(rows[:count], values[:count])
        kernels.append(learned.kernel)
    assert kernels[0] is kernels[1] and kernels[1] is not kernels[2] and kernels[2] is not kernels[3]


@pytest.mark.parametrize("values", [[3.0] * 6, [1.0, 1.0, 1.0, 1.0, 1.0, 9.0]])
def test_values_that_are_all_the_same_or_far_away_are_predicted_as_numbers(values: list[float]) -> None:
    rows = rows_at(np.random.default_rng(0).random((6, 4)), 1.0, np.arange(6))
    mean, std = FittedKernel(GROUPS).posterior(rows, np.array(values)).predict(rows)
    assert np.isfinite(mean).all() and np.isfinite(std).all()


def test_a_space_without_parameters_has_a_process_too() -> None:
    rows = rows_at(np.zeros((2, 0)), [0.5, 1.0], [0, 0])
    values = np.array([1.0, 0.9])
    mean, _ = CurvePosterior(default_kernel(np.zeros(0, dtype=int)), rows, values, Standardization.of(values)).predict(
        rows[1:]
    )
    assert mean == pytest.approx([0.9], abs=0.02)


@pytest.mark.slow
def test_more_rows_than_the_process_bears_are_thinned() -> None:
    rows, values = curves(np.random.default_rng(0), 250)
    process = FittedKernel(GROUPS).posterior(rows, values)
    assert len(process.rows) == 600
    assert (process.rows[-1] == rows[-1]).all()


def test_a_fit_and_a_prediction_take_one_thread_and_leave_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads() -> set[int]:
        return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

    seen: list[set[int]] = []
    covariance = CurveKernel.__call__

    def watched(*given: Any, **more: Any) -> Any:
        seen.append(threads())
        return covariance(*given, **more)

    monkeypatch.setattr(CurveKernel, "__call__", watched)
    rows, values = curves(np.random.default_rng(0), 5)
    with threadpool_limits(2, user_api="blas"):
        posterior = FittedKernel(GROUPS).posterior(rows, values)
        fits = len(seen)
        posterior.predict(rows)
        assert len(seen) > fits > 0 and all(one == {1} for one in seen)
        assert threads() == {2}
