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

scikit-learn fits hyperparameters. The kernel is ours: scikit-learn has no offsets per trial and no shared length
scales. So is the posterior: scikit-learn computes the covariance twice, and all of it again for further rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
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
MOST_ROWS, MOST_FITTED = 600, 160  # that the process is conditioned on, and that its hyperparameters are fitted to
_GROWTH = 1.1  # of the rows, before hyperparameters are fitted again
_PRIOR_COUNTS = 6  # values for which a prior mean and standard deviation count; first validations are much alike
_START = 3  # doublings of tokens before the end, where slopes make no difference: trials begin with the same weights
_BOUNDS = 1e-10, 1e6
_AT_ONCE = 16_000  # numbers of a matrix
JITTER = 1e-6  # on the diagonal of a covariance, which rounding would leave singular
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
        # Configurations are compared once, however many validations they have, and so are numbers of tokens.
        (some, row), (others, column) = _distinct_rows(X[:, :-2]), _distinct_rows(other[:, :-2])
        (early, at), (late, until) = _distinct_rows(X[:, -2:-1]), _distinct_rows(other[:, -2:-1])
        lag = ((early - late.T) / self.time) ** 2
        bend, line = np.exp(-lag / 2), _progress(early) * _progress(late).T
        curve, common = self.level + self.slope * line, self.trend * (bend + line)
        joint, effects = self._likeness(some, others)
        alike, same_trial = joint + self.main * effects, X[:, None, -1] == other[:, -1]
        matrix = _spread(alike, row, column)
        matrix *= _spread(curve, at, until)
        matrix += _spread(common, at, until)
        matrix += self.offset * same_trial
        if Y is None:
            matrix[np.diag_indices_from(matrix)] += self.noise
        if not eval_gradient:
            return matrix
        squares = np.array([_spread(*one) for one in self._squares(some, others)]).reshape(-1, len(some), len(others))
        slopes = _matern_slope(squares.sum(axis=0)) + self.main * _matern_slope(squares) / max(1, len(squares))
        alike, curve, line = _spread(alike, row, column), _spread(curve, at, until), _spread(line, at, until)
        parts = {
            "level": self.level * alike, "main": self.main * _spread(effects, row, column) * curve,
            "noise": self.noise * np.eye(len(X)), "offset": self.offset * same_trial,
            "scales": (squares * slopes)[:, row[:, None], column] * curve, "slope": self.slope * alike * line,
            "time": self.trend * _spread(bend * lag, at, until), "trend": _spread(common, at, until),
        }  # fmt: skip
        ordered = [parts[one.name] for one in self.hyperparameters]
        return matrix, np.stack([one for part in ordered for one in part.reshape(-1, len(X), len(X))], axis=-1)

    def _likeness(self, some: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The Matérn kernel of configurations over all parameters, and the mean of those over each."""
        scales = np.atleast_1d(self.scales)[self.groups]
        effects = np.zeros((len(some), len(others)))
        for squares, row, column in self._squares(some, others):
            effects += _spread(_matern(squares), row, column)
        joint = _matern(cdist(some / scales, others / scales, "sqeuclidean"))
        return joint, effects / max(1, _parameters(self.groups))

    def _squares(self, some: np.ndarray, others: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Squared distances of a parameter's values in units of its length scale, of one parameter after the other.
        Most have few values, which are compared once: the table is of distinct ones, and beside it is which of them
        configurations have."""
        for group, scale in enumerate(np.atleast_1d(self.scales)[: _parameters(self.groups)]):
            columns = self.groups == group
            (one, row), (other, column) = _distinct_rows(some[:, columns]), _distinct_rows(others[:, columns])
            yield cdist(one / scale, other / scale, "sqeuclidean"), row, column

    def diag(self, X: np.ndarray) -> np.ndarray:
        """The prior variance of a trial's quality, without the noise of a validation."""
        line = _progress(X[:, -2]) ** 2
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


def _distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows, and the place of each row among them; the rows themselves where all are distinct. NumPy's `unique`
    takes several times as long for rows."""
    if rows.shape[1] == 0:
        return rows[:1], np.zeros(len(rows), dtype=int)
    order = np.lexsort(rows.T)
    ranked = rows[order]
    differs = (ranked[1:] != ranked[:-1]).any(axis=1)
    if differs.all():
        return rows, np.arange(len(rows))
    is_first = np.concatenate([[True], differs])
    places = np.empty(len(rows), dtype=int)
    places[order] = np.cumsum(is_first) - 1
    return ranked[is_first], places


def _spread(table: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """A table's values at these rows and columns, which are places among distinct ones."""
    return np.asarray(table[:, column][row])  # whole rows are copied fast


def _matern(squares: np.ndarray) -> np.ndarray:
    """A Matérn kernel (5/2) of squared distances. Some rows at a time: what a processor keeps near it is read several
    times as fast as memory."""
    found = np.empty_like(squares)
    step = max(1, _AT_ONCE // max(1, squares.shape[-1]))
    for start in range(0, len(squares), step):
        distance = np.sqrt(5 * squares[start : start + step])
        found[start : start + step] = (1 + distance * (1 + distance / 3)) * np.exp(-distance)
    return found


def _matern_slope(squares: np.ndarray) -> np.ndarray:
    """The factor of a square in that kernel's gradient by the logarithm of the square's length scale."""
    distance = np.sqrt(5 * squares)
    return np.asarray((5 / 3) * (1 + distance) * np.exp(-distance))


def _progress(log_tokens: np.ndarray) -> np.ndarray:
    """Linear in log tokens: 0 at the start of slopes, 1 at the budget's end."""
    return np.asarray(1 + log_tokens / _START)


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


class Rows(Protocol):
    """Rows of which a selection may be asked for: an array, or one that is made then."""

    def __len__(self) -> int: ...

    def __getitem__(self, some: np.ndarray, /) -> np.ndarray: ...


class FittedKernel:
    """A kernel whose hyperparameters are fitted again whenever there are a tenth more rows, beginning at the last fit.
    The number of rows is bounded, so that a fit takes a moment."""

    def __init__(self, groups: np.ndarray) -> None:
        self.kernel = self.middle = default_kernel(groups)
        self.rows = 0.0
        self._fitting = Lock()  # one thread decides on a trial at its rung while another chooses the next trial

    def posterior(self, rows: Rows, values: np.ndarray, prior: tuple[float, float] | None = None) -> CurvePosterior:
        """The process conditioned on these rows, or on a bounded number of them; `prior` is of the values."""
        scale = Standardization.of(values, prior)
        some, kept = bounded_rows(len(rows), MOST_FITTED), bounded_rows(len(rows), MOST_ROWS)
        if self.is_due(len(rows)):
            self.fit(len(rows), rows[some], scale.standardize(values[some]))
        return CurvePosterior(self.kernel, rows[kept], values[kept], scale)

    def is_due(self, rows: int) -> bool:
        """Whether so many rows are enough more to fit the hyperparameters again."""
        return rows > 0 and rows >= _GROWTH * self.rows

    @_in_one_thread
    def fit(self, count: int, rows: np.ndarray, standard: np.ndarray) -> None:
        """Fit the hyperparameters to standardised values, those of a selection of so many rows."""
        with self._fitting:
            if self.is_due(count):  # another thread may have fitted them
                fitting = GaussianProcessRegressor(
                    self.kernel, alpha=JITTER, optimizer=_map_optimizer(self.middle), copy_X_train=False
                )
                self.kernel = fitting.fit(rows, standard).kernel_
                self.rows = count

    def as_it_is(self) -> FittedKernel:
        """A copy that is not fitted again."""
        fixed = copy(self)
        fixed.rows = math.inf
        return fixed


class CurvePosterior:
    """The process conditioned on validations, or its prior where there are none; predicts log quality."""

    @_in_one_thread
    def __init__(
        self, kernel: CurveKernel, rows: np.ndarray, values: np.ndarray, scale: Standardization,
        factor: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """`factor` is the Cholesky factor of the rows' covariance, where it is known."""
        self.kernel, self.rows, self.values, self.scale = kernel, rows, values, scale
        self._factor = cholesky(_covariance(kernel, rows), lower=True) if factor is None else factor
        self._weights = cho_solve((self._factor, True), scale.standardize(values))

    @_in_one_thread
    def conditioned_on(self, rows: np.ndarray, values: np.ndarray) -> CurvePosterior:
        """The same process conditioned on further rows, by which the Cholesky factor grows."""
        _, known = self._common_with(rows)
        corner = cholesky(_covariance(self.kernel, rows) - known.T @ known, lower=True)
        factor = np.block([[self._factor, np.zeros_like(known)], [known.T, corner]])
        more = np.concatenate([self.rows, rows]), np.concatenate([self.values, values])
        return CurvePosterior(self.kernel, *more, self.scale, factor)

    @_in_one_thread
    def predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of log quality at rows."""
        across, known = self._common_with(rows)
        variance = self.kernel.diag(rows) - np.einsum("ij,ij->j", known, known)
        std = np.sqrt(np.maximum(variance, 0))  # rounding may leave less than nothing
        return self.scale.mean + self.scale.std * (across @ self._weights), self.scale.std * std

    def mean(self, rows: np.ndarray) -> np.ndarray:
        """Mean of log quality at rows."""
        return self.scale.mean + self.scale.std * self.standard_mean(rows)

    @_in_one_thread
    def standard_mean(self, rows: np.ndarray) -> np.ndarray:
        """Mean at rows, in standard deviations from the mean of the values."""
        return np.asarray(self.kernel(rows, self.rows) @ self._weights)

    @_in_one_thread
    def predict_jointly(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of log quality at rows."""
        across, known = self._common_with(rows)
        covariance = self.kernel(rows) - known.T @ known
        return self.scale.mean + self.scale.std * (across @ self._weights), self.scale.std**2 * covariance

    def _common_with(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The covariance of other rows with its own, and the same divided by the Cholesky factor."""
        across = self.kernel(rows, self.rows)
        return across, np.asarray(solve_triangular(self._factor, across.T, lower=True))


def bounded_rows(count: int, most: int) -> np.ndarray:
    """Indices of at most so many rows: the last half of them, and an even selection of the others."""
    if count <= most:
        return np.arange(count)
    recent = most // 2
    earlier = np.linspace(0, count - recent - 1, most - recent).astype(int)
    return np.concatenate([earlier, np.arange(count - recent, count)])


def _covariance(kernel: CurveKernel, rows: np.ndarray) -> np.ndarray:
    """The covariance of validations, which can be inverted."""
    matrix: np.ndarray = kernel(rows)
    matrix[np.diag_indices_from(matrix)] += JITTER
    return matrix


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
