"""Mean function from earlier searches: what they let expect of a learning curve, as far as the new search agrees.

Each earlier search has a process of its own over its trials' curves, in its own standard deviations from its own mean.
With the posterior means m of these processes, the new search's standardised log quality is

    w_1 m_1(configuration, tokens) + w_2 m_2(configuration, tokens) + ... + its own process

The weights w are not negative, and are fitted to its own validations whenever there are more of them. Where an earlier
search misleads its weight falls to zero, and the new search goes on as if it did not know of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import nnls

from recur_tune.search.propose.features import NEW, Features, rows_at
from recur_tune.search.propose.gaussian_process import (
    JITTER,
    MOST_FITTED,
    MOST_ROWS,
    CurvePosterior,
    FittedKernel,
    Rows,
    Standardization,
    bounded_rows,
)
from recur_tune.search.record.knowledge import EarlierSearch

# The normal prior of the weights, before only those that are not negative are allowed: the sum of its means, of which
# every earlier search has the same share, and the standard deviation of each.
_SUM, _STD = 0.8, 0.4
_LITTLE = 0.05  # a weight below it is told as none
_UNCHANGED = Standardization(0.0, 1.0)


class Expectation:
    """What an earlier search lets expect of a trial, in its own standard deviations from its own mean."""

    def __init__(self, features: Features, search: EarlierSearch) -> None:
        encoded = features([one.fields for one in search.curves])
        validations = [(place, *each) for place, one in enumerate(search.curves) for each in one.curve]
        places, shares, qualities = map(np.array, zip(*validations, strict=True))
        self.name = search.name
        self.process = FittedKernel(features.groups).posterior(
            rows_at(encoded[places], shares, places), np.log(qualities)
        )

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """The expected values at rows. Their trials are others than its own, whatever their numbers."""
        return self.process.standard_mean(np.column_stack([rows[:, :-1], np.full(len(rows), NEW)]))


class LeaningKernel:
    """A fitted kernel whose process leans on earlier searches: their weighted expectations are its mean."""

    def __init__(self, features: Features, searches: Sequence[EarlierSearch]) -> None:
        self.own = FittedKernel(features.groups)
        self.expectations = [Expectation(features, one) for one in searches]
        self._known: dict[bytes, np.ndarray] = {}  # expectations of the search's own validations
        self.weights = fitted_weights(np.empty((0, 0)), np.empty((0, len(searches))), np.empty(0))

    def posterior(self, rows: Rows, values: np.ndarray, prior: tuple[float, float] | None = None) -> LeaningPosterior:
        """The process conditioned on these rows. Weights and hyperparameters are fitted in turn."""
        scale = Standardization.of(values, prior)
        some, kept = bounded_rows(len(rows), MOST_FITTED), bounded_rows(len(rows), MOST_ROWS)
        fitted, standard = rows[some], scale.standardize(values[some])
        expected = self._expected_of_own(fitted)
        if self.own.is_due(len(rows)):
            weights = fitted_weights(self.own.kernel(fitted), expected, standard)
            self.own.fit(len(rows), fitted, standard - expected @ weights)
        self.weights = weights = fitted_weights(self.own.kernel(fitted), expected, standard)
        rows = rows[kept]
        residuals = scale.standardize(values[kept]) - self._expected_of_own(rows) @ weights
        return LeaningPosterior(CurvePosterior(self.own.kernel, rows, residuals, _UNCHANGED), self, weights, scale)

    @property
    def in_words(self) -> str:
        """Which earlier searches the process leans on, by their weights."""
        pairs = list(zip(self.expectations, self.weights, strict=True))
        on = [f"{one.name} ({weight:.1f})" for one, weight in pairs if weight >= _LITTLE]
        off = [one.name for one, weight in pairs if weight < _LITTLE]
        leans = [f"leans on {' and '.join(on)}"] if on else []
        return ", ".join([*leans, *([f"not on {' and '.join(off)}"] if off else [])])

    def as_it_is(self) -> LeaningKernel:
        """A copy whose hyperparameters are not fitted again."""
        fixed = copy(self)
        fixed.own = self.own.as_it_is()
        return fixed

    def _expected_of_own(self, rows: np.ndarray) -> np.ndarray:
        """What they let expect at validations of the search's own, most of which are asked for at every choice."""
        keys = [row.tobytes() for row in rows]
        unseen = {key: place for place, key in enumerate(keys) if key not in self._known}
        self._known.update(zip(unseen, self.expected(rows[[*unseen.values()]]), strict=True))
        return np.array([self._known[key] for key in keys]).reshape(-1, len(self.expectations))

    def expected(self, rows: np.ndarray) -> np.ndarray:
        """What each earlier search lets expect at rows: [rows, searches]."""
        columns = [one(rows) if len(rows) else np.empty(0) for one in self.expectations]
        return np.column_stack(columns)


class LeaningPosterior:
    """The process conditioned on validations around the expectations of earlier searches; predicts log quality."""

    def __init__(
        self, process: CurvePosterior, kernel: LeaningKernel, weights: np.ndarray, scale: Standardization
    ) -> None:
        self.process, self.kernel, self.weights, self.scale = process, kernel, weights, scale

    def conditioned_on(self, rows: np.ndarray, values: np.ndarray) -> LeaningPosterior:
        """The same process conditioned on further rows."""
        residuals = self.scale.standardize(values) - self._expected(rows)
        return LeaningPosterior(self.process.conditioned_on(rows, residuals), self.kernel, self.weights, self.scale)

    def predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of log quality at rows."""
        mean, std = self.process.predict(rows)
        return self.scale.mean + self.scale.std * (mean + self._expected(rows)), self.scale.std * std

    def predict_jointly(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of log quality at rows."""
        mean, covariance = self.process.predict_jointly(rows)
        return self.scale.mean + self.scale.std * (mean + self._expected(rows)), self.scale.std**2 * covariance

    def _expected(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.kernel.expected(rows) @ self.weights)


def fitted_weights(covariance: np.ndarray, expected: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The most probable weights that are not negative: by their prior, and by values with this covariance around what
    is `expected` [values, weights]."""
    count = expected.shape[1]
    precision, pull = np.eye(count) / _STD**2, np.full(count, _SUM / count) / _STD**2
    if len(values):
        factor = cho_factor(covariance + JITTER * np.eye(len(values)))
        precision = precision + expected.T @ cho_solve(factor, expected)
        pull = pull + expected.T @ cho_solve(factor, values)
    root = cholesky(precision)  # |root w - b|² is the quadratic form but for a constant
    weights, _ = nnls(root, solve_triangular(root, pull, trans="T"))
    return np.asarray(weights)
