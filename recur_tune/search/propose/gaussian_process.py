"""A Gaussian process of learning curves: log quality over a trial's features and the logarithm of its tokens.

All validations are data, also those of pruned trials. The kernel, with u linear in log tokens, T a squared exponential
over them and [..] an indicator:

    F (level + slope u u')  the level of a configuration's curve, and its slope
    + trend (T + u u')      the trend that all curves share
    + offset [same trial]   a trial's own offset, such as its seed's
    + noise [same row]      the noise of a validation

F compares configurations: a Matérn kernel over all parameters, and `main` times the mean of one for each parameter
(main effects), so that what is good in two trials is expected to be better together. Slopes let a curve go on falling,
and let curves that begin alike end far apart.

scikit-learn fits and predicts. The kernel is ours: scikit-learn has no offsets per trial and no shared length scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel
from threadpoolctl import ThreadpoolController

# Log-normal priors of the hyperparameters: median, and standard deviation of the logarithm. Variances are in units of
# the qualities' own, `time` in doublings of tokens; the median of the length scales grows with their number.
_PRIOR = {
    "level": (0.7, 0.5), "slope": (0.5, 1.0), "trend": (0.5, 1.0), "offset": (0.01, 1.5), "noise": (0.001, 1.5),
    "time": (3.0, 0.5), "main": (2.0, 1.0), "scales": (0.5, 0.5),
}  # fmt: skip
_ITERATIONS = 20
_MOST_ROWS, MOST_FITTED = 600, 160  # that the process is conditioned on, and that its hyperparameters are fitted to
_GROWTH = 1.1  # of the rows, before hyperparameters are fitted again
_PRIOR_COUNTS = 6  # values for which a prior mean and standard deviation count; first validations are much alike
_START = 3  # doublings of tokens before the end, where slopes make no difference: trials begin with the same weights
_BOUNDS = 1e-10, 1e6
# Threads of BLAS spin while they wait for each other, and trials have the cores: in one thread a fit is faster there.
_in_one_thread = ThreadpoolController().wrap(limits=1, user_api="blas")


class CurveKernel(Kernel):
    """The kernel above, over rows [features, log2 tokens, trial]; features of one group share a length scale."""

    def __init__(
        self, groups: np.ndarray, scales: Any, time: float, level: float, slope: float, trend: float, offset: float,
        noise: float, main: float,
    ) -> None:  # fmt: skip
        self.groups, self.scales, self.time, self.main = groups, scales, time, main
        self.level, self.slope, self.trend, self.offset, self.noise = level, slope, trend, offset, noise

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        """The hyperparameters that scikit-learn optimises."""
        others = [Hyperparameter(name, "numeric", _BOUNDS) for name in _PRIOR if name != "scales"]
        count = _parameters(self.groups)
        return [*others, Hyperparameter("scales", "numeric", _BOUNDS, count)] if count else others

    def __call__(self, X: np.ndarray, Y: np.ndarray | None = None, eval_gradient: bool = False) -> Any:
        """The covariance matrix, and on request its gradient by the logarithms of the hyperparameters."""
        other = X if Y is None else Y
        # Configurations are compared once, however many validations they have.
        (some, row), (others, column) = _configurations(X), _configurations(other)
        squares = self._squares(some, others)
        together = squares.sum(axis=0)
        joint, single = _matern(together), _matern(squares)
        row = row[:, None]
        effects = (single.sum(axis=0) / max(1, len(squares)))[row, column]
        alike = joint[row, column] + self.main * effects
        lag = ((X[:, None, -2] - other[None, :, -2]) / self.time) ** 2
        bend, line = np.exp(-lag / 2), np.outer(_progress(X), _progress(other))
        same_trial = (X[:, None, -1] == other[None, :, -1]).astype(float)
        same_row = np.eye(len(X)) if Y is None else 0.0
        curve, common = self.level + self.slope * line, bend + line
        matrix = alike * curve + self.trend * common + self.offset * same_trial + self.noise * same_row
        if not eval_gradient:
            return matrix
        by_scale = squares * (_matern_slope(together) + self.main * _matern_slope(squares) / max(1, len(squares)))
        parts = {
            "level": self.level * alike, "main": self.main * effects * curve, "noise": self.noise * same_row,
            "offset": self.offset * same_trial, "scales": by_scale[:, row, column] * curve,
            "slope": self.slope * alike * line, "time": self.trend * bend * lag, "trend": self.trend * common,
        }  # fmt: skip
        ordered = [parts[one.name] for one in self.hyperparameters]
        return matrix, np.stack([one for part in ordered for one in part.reshape(-1, len(X), len(X))], axis=-1)

    def _squares(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Squared distances of features by parameter, in units of its length scale: [parameters, some, others]."""
        scales = np.atleast_1d(self.scales)
        squares = np.zeros((_parameters(self.groups), len(some), len(others)))
        for column, group in enumerate(self.groups):
            difference = some[:, None, column] - others[None, :, column]
            squares[group] += (difference / scales[group]) ** 2
        return squares

    def diag(self, X: np.ndarray) -> np.ndarray:
        """The prior variance of a trial's quality, without the noise of a validation."""
        line = _progress(X) ** 2
        effects = 1 + self.main * bool(_parameters(self.groups))
        return effects * (self.level + self.slope * line) + self.trend * (1 + line) + self.offset

    def is_stationary(self) -> bool:
        """Slopes depend on the tokens themselves."""
        return False


def default_kernel(groups: np.ndarray) -> CurveKernel:
    """The kernel at the medians of its priors. Length scales grow with the number of parameters, as distances do."""
    middle: dict[str, Any] = {name: expected for name, (expected, _) in _PRIOR.items()}
    count = _parameters(groups)
    return CurveKernel(groups, **(middle | {"scales": np.full(count, middle["scales"] * np.sqrt(max(count, 1)))}))


def _configurations(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct features of rows, and the place of each row among them."""
    if rows.shape[1] == 2:  # no parameters, and NumPy finds no distinct rows without columns
        return rows[:1, :-2], np.zeros(len(rows), dtype=int)
    distinct, places = np.unique(rows[:, :-2], axis=0, return_inverse=True)
    return distinct, places.reshape(-1)


def _matern(squares: np.ndarray) -> np.ndarray:
    """A Matérn kernel (5/2) of squared distances."""
    distance = np.sqrt(5 * squares)
    return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance))


def _matern_slope(squares: np.ndarray) -> np.ndarray:
    """The factor of a square in that kernel's gradient by the logarithm of the square's length scale."""
    distance = np.sqrt(5 * squares)
    return np.asarray((5 / 3) * (1 + distance) * np.exp(-distance))


def _progress(rows: np.ndarray) -> np.ndarray:
    """Linear in log tokens: 0 at the start of slopes, 1 at the budget's end."""
    return np.asarray(1 + rows[:, -2] / _START)


def _parameters(groups: np.ndarray) -> int:
    return int(groups.max()) + 1 if len(groups) else 0


@dataclass(frozen=True)
class Standardization:
    """The mean and standard deviation by which values are standardised."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: np.ndarray, prior: tuple[float, float] | None = None) -> Standardization:
        """Those of the values. A `prior` mean and standard deviation count like a few more values: the first trials
        may happen to be equal, which would make all predictions certain."""
        if prior is None:
            return cls(float(values.mean()), float(values.std()) or 1.0)
        expected, spread = prior
        count = len(values) + _PRIOR_COUNTS
        mean = (float(values.sum()) + _PRIOR_COUNTS * expected) / count
        variance = (float(((values - mean) ** 2).sum()) + _PRIOR_COUNTS * spread**2) / count
        return cls(mean, math.sqrt(variance))

    def standardize(self, values: np.ndarray) -> np.ndarray:
        """Values in standard deviations from the mean."""
        return np.asarray((values - self.mean) / self.std)


class FittedKernel:
    """A kernel whose hyperparameters are fitted again whenever there are a tenth more rows, beginning at the last fit.
    The number of rows is bounded, so that a fit takes a moment."""

    def __init__(self, groups: np.ndarray) -> None:
        self.kernel = self.middle = default_kernel(groups)
        self.rows = 0.0
        self._fitting = Lock()  # one thread decides on a trial at its rung while another chooses the next trial

    def posterior(
        self, rows: np.ndarray, values: np.ndarray, prior: tuple[float, float] | None = None
    ) -> CurvePosterior:
        """The process conditioned on these rows, or on a bounded number of them; `prior` is of the values."""
        scale = Standardization.of(values, prior)
        self.fit(rows, scale.standardize(values))
        return self.conditioned(rows, values, scale)

    @_in_one_thread
    def fit(self, rows: np.ndarray, standard: np.ndarray) -> None:
        """Fit the hyperparameters to standardised values, if there are enough more of them."""
        with self._fitting:
            if len(rows) and len(rows) >= _GROWTH * self.rows:
                some = bounded_rows(len(rows), MOST_FITTED)
                fitting = _process(self.kernel, _map_optimizer(self.middle))
                self.kernel = fitting.fit(rows[some], standard[some]).kernel_
                self.rows = len(rows)

    def conditioned(self, rows: np.ndarray, values: np.ndarray, scale: Standardization) -> CurvePosterior:
        """The process conditioned on these rows, with the hyperparameters as they are."""
        some = bounded_rows(len(rows), _MOST_ROWS)
        return CurvePosterior(self.kernel, rows[some], values[some], scale)

    def as_it_is(self) -> FittedKernel:
        """A copy that is not fitted again."""
        fixed = copy(self)
        fixed.rows = math.inf
        return fixed


class CurvePosterior:
    """The process conditioned on validations, or its prior where there are none; predicts log quality."""

    @_in_one_thread
    def __init__(self, kernel: CurveKernel, rows: np.ndarray, values: np.ndarray, scale: Standardization) -> None:
        self.kernel, self.rows, self.values, self.scale = kernel, rows, values, scale
        self._process = _process(kernel, None)
        if len(rows):
            self._process.fit(rows, scale.standardize(values))

    def conditioned_on(self, rows: np.ndarray, values: np.ndarray) -> CurvePosterior:
        """The same process conditioned on further rows."""
        more = np.concatenate([self.rows, rows]), np.concatenate([self.values, values])
        return CurvePosterior(self.kernel, *more, self.scale)

    @_in_one_thread
    def predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of log quality at rows."""
        mean, std = map(np.atleast_1d, self._process.predict(rows, return_std=True))
        return self.scale.mean + self.scale.std * mean, self.scale.std * std

    @_in_one_thread
    def standard_mean(self, rows: np.ndarray) -> np.ndarray:
        """Mean at rows, in standard deviations from the mean of the values."""
        return np.atleast_1d(self._process.predict(rows))

    @_in_one_thread
    def predict_jointly(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of log quality at rows."""
        mean, covariance = self._process.predict(rows, return_cov=True)
        return self.scale.mean + self.scale.std * mean, self.scale.std**2 * covariance


def bounded_rows(count: int, most: int) -> np.ndarray:
    """Indices of at most so many rows: the last half of them, and an even selection of the others."""
    if count <= most:
        return np.arange(count)
    recent = most // 2
    earlier = np.linspace(0, count - recent - 1, most - recent).astype(int)
    return np.concatenate([earlier, np.arange(count - recent, count)])


def _process(kernel: CurveKernel, optimizer: Any) -> GaussianProcessRegressor:
    return GaussianProcessRegressor(kernel, alpha=1e-6, optimizer=optimizer, copy_X_train=False)


def _map_optimizer(middle: CurveKernel) -> Callable[..., tuple[np.ndarray, float]]:
    """L-BFGS for the maximum a posteriori: with few trials the likelihood alone overfits."""
    centre = middle.theta
    width = np.concatenate([np.full(one.n_elements, _PRIOR[one.name][1]) for one in middle.hyperparameters])

    def optimise(likelihood: Any, start: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, float]:
        def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = likelihood(theta)
            away = (theta - centre) / width
            return value + away @ away / 2, slope + away / width

        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _ITERATIONS})
        return found.x, float(found.fun)

    return optimise
