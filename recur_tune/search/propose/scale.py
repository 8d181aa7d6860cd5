"""The scale of what a Gaussian process models: values in standard deviations from their mean, as its priors are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_COUNTS_FOR = 2  # values


@dataclass(frozen=True)
class Scale:
    """The mean and standard deviation of values."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: np.ndarray, expected: Scale | None = None) -> Scale:
        """The scale of values. What was expected counts like two more: the first two trials may happen to be alike, and
        all others would seem certain."""
        if expected is None:
            return cls(float(values.mean()), float(values.std()) or 1.0)
        count = len(values) + _COUNTS_FOR
        mean = (float(values.sum()) + _COUNTS_FOR * expected.mean) / count
        variance = (float(((values - mean) ** 2).sum()) + _COUNTS_FOR * expected.std**2) / count
        return cls(mean, math.sqrt(variance))

    def normal(self, values: np.ndarray) -> np.ndarray:
        """Values in standard deviations from the mean."""
        return np.asarray((values - self.mean) / self.std)
