"""A Gaussian process of learning curves: log quality over a trial's features and the logarithm of its tokens.

Every validation teaches, also of trials that were pruned. The kernel, with M a Matérn kernel over features, T a squared
exponential over log tokens and [..] one or nought:

    M (level + shape T)     how good configurations are, and how their curves differ
    + trend T               how all curves fall
    + offset [same trial]   what no feature explains: a seed's luck stays with a trial
    + noise [same row]      validations scatter

scikit-learn conditions and optimises; the kernel is ours because of the trials' offsets and the shared length scales.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from recur_tune.search.propose.scale import Standardization

# Of the logarithms of hyperparameters: where each is expected, and how surely. Variances are in units of the qualities'
# own, `time` in doublings of tokens; the scales' middle depends on how many there are.
_PRIOR = {
    "level": (0.5, 1.0), "shape": (0.05, 1.0), "trend": (0.5, 1.0), "offset": (0.01, 1.5), "noise": (0.001, 1.5),
    "time": (3.0, 0.5), "scales": (0.5, 0.5),
}  # fmt: skip
_ITERATIONS = 20
_MOST_ROWS, _MOST_FITTED = 600, 160  # that the process is given, and that its hyperparameters are fitted to
_GROWTH = 1.1  # of the rows, before they are fitted anew
_BOUNDS = 1e-10, 1e6


class CurveKernel(Kernel):
    """The kernel above, over rows [features, log2 tokens, trial]; `groups` says which features share a scale."""

    def __init__(
        self, groups: np.ndarray, scales: Any, time: float, level: float, shape: float, trend: float, offset: float,
        noise: float,
    ) -> None:  # fmt: skip
        self.groups, self.scales, self.time = groups, scales, time
        self.level, self.shape, self.trend, self.offset, self.noise = level, shape, trend, offset, noise

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        """What scikit-learn optimises."""
        others = [Hyperparameter(name, "numeric", _BOUNDS) for name in _PRIOR if name != "scales"]
        count = _parameters(self.groups)
        return [*others, Hyperparameter("scales", "numeric", _BOUNDS, count)] if count else others

    def __call__(self, X: np.ndarray, Y: np.ndarray | None = None, eval_gradient: bool = False) -> Any:
        """The matrix, and where it is asked for its derivatives by the logarithms of the hyperparameters."""
        other = X if Y is None else Y
        squares = self._squares(X, other)
        distance = np.sqrt(5 * squares.sum(axis=0))
        fade = np.exp(-distance)
        matern = (1 + distance + distance**2 / 3) * fade
        lag = ((X[:, None, -2] - other[None, :, -2]) / self.time) ** 2
        time = np.exp(-lag / 2)
        same_trial = (X[:, None, -1] == other[None, :, -1]).astype(float)
        same_row = np.eye(len(X)) if Y is None else 0.0
        over_time = self.level + self.shape * time
        matrix = matern * over_time + self.trend * time + self.offset * same_trial + self.noise * same_row
        if not eval_gradient:
            return matrix
        slope = (5 / 3) * (1 + distance) * fade * over_time
        parts = {
            "level": self.level * matern, "noise": self.noise * same_row, "offset": self.offset * same_trial,
            "scales": slope * squares, "shape": self.shape * matern * time, "trend": self.trend * time,
            "time": (self.shape * matern + self.trend) * time * lag,
        }  # fmt: skip
        ordered = [parts[one.name] for one in self.hyperparameters]
        return matrix, np.stack([one for part in ordered for one in part.reshape(-1, len(X), len(X))], axis=-1)

    def _squares(self, X: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Squared distances by parameter, in units of its scale: [parameters, rows, rows]."""
        scales = np.atleast_1d(self.scales)
        squares = np.zeros((_parameters(self.groups), len(X), len(other)))
        for column, group in enumerate(self.groups):
            difference = X[:, None, column] - other[None, :, column]
            squares[group] += (difference / scales[group]) ** 2
        return squares

    def diag(self, X: np.ndarray) -> np.ndarray:
        """The variance of what a further trial would have, without its validation's scatter."""
        return np.full(len(X), self.level + self.shape + self.trend + self.offset)

    def is_stationary(self) -> bool:
        """It only knows differences."""
        return True


def default_kernel(groups: np.ndarray) -> CurveKernel:
    """The kernel at the middle of its priors. With more parameters each says less: points lie further apart."""
    middle: dict[str, Any] = {name: expected for name, (expected, _) in _PRIOR.items()}
    count = _parameters(groups)
    return CurveKernel(groups, **(middle | {"scales": np.full(count, middle["scales"] * np.sqrt(max(count, 1)))}))


def _parameters(groups: np.ndarray) -> int:
    return int(groups.max()) + 1 if len(groups) else 0


class FittedKernel:
    """Hyperparameters that are fitted now and then: each time from the last ones, when there is a tenth more to learn
    from, on no more rows than a moment allows."""

    def __init__(self, groups: np.ndarray) -> None:
        self.kernel = self.middle = default_kernel(groups)
        self.rows = 0.0
        self._fitting = Lock()  # a trial may be judged while the next one is chosen

    def posterior(self, rows: np.ndarray, values: np.ndarray, prior: Standardization | None = None) -> CurvePosterior:
        """The process given these rows, or as many of them as it bears."""
        scale = Standardization.of(values, prior)
        with self._fitting:
            if len(rows) and len(rows) >= _GROWTH * self.rows:
                some = _spread(len(rows), _MOST_FITTED)
                fitting = _process(self.kernel, _map_optimizer(self.middle))
                self.kernel = fitting.fit(rows[some], scale.standardize(values[some])).kernel_
                self.rows = len(rows)
        some = _spread(len(rows), _MOST_ROWS)
        return CurvePosterior(self.kernel, rows[some], values[some], scale)


class CurvePosterior:
    """The process given some validations, or none; predicts log quality."""

    def __init__(self, kernel: CurveKernel, rows: np.ndarray, values: np.ndarray, scale: Standardization) -> None:
        self.kernel, self.rows, self.values, self.scale = kernel, rows, values, scale
        self._process = _process(kernel, None)
        if len(rows):
            self._process.fit(rows, scale.standardize(values))

    def conditioned_on(self, rows: np.ndarray, values: np.ndarray) -> CurvePosterior:
        """The same process given more."""
        more = np.concatenate([self.rows, rows]), np.concatenate([self.values, values])
        return CurvePosterior(self.kernel, *more, self.scale)

    def predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of log quality at rows."""
        mean, std = map(np.atleast_1d, self._process.predict(rows, return_std=True))
        return self.scale.mean + self.scale.std * mean, self.scale.std * std


def _spread(count: int, most: int) -> np.ndarray:
    """Places of at most so many rows, the last ones always and evenly from the others."""
    if count <= most:
        return np.arange(count)
    recent = most // 2
    earlier = np.linspace(0, count - recent - 1, most - recent).astype(int)
    return np.concatenate([earlier, np.arange(count - recent, count)])


def _process(kernel: CurveKernel, optimizer: Any) -> GaussianProcessRegressor:
    return GaussianProcessRegressor(kernel, alpha=1e-6, optimizer=optimizer, copy_X_train=False)


def _map_optimizer(middle: CurveKernel) -> Callable[..., tuple[np.ndarray, float]]:
    """L-BFGS on the likelihood times the priors: with few trials the likelihood alone believes in chance."""
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
