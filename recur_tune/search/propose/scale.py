"""The scale of what a Gaussian process models: values in standard deviations from their mean, as its priors are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_COUNTS_FOR = 2  # values


@dataclass(frozen=True)
class Standardization:
    """The mean and standard deviation of values."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: np.ndarray, prior: Standardization | None = None) -> Standardization:
        """The scale of values. What was expected counts like two more: the first two trials may happen to be alike, and
        all others would seem certain."""
        if prior is None:
            return cls(float(values.mean()), float(values.std()) or 1.0)
        count = len(values) + _COUNTS_FOR
        mean = (float(values.sum()) + _COUNTS_FOR * prior.mean) / count
        variance = (float(((values - mean) ** 2).sum()) + _COUNTS_FOR * prior.std**2) / count
        return cls(mean, math.sqrt(variance))

    def standardize(self, values: np.ndarray) -> np.ndarray:
        """Values in standard deviations from the mean."""
        return np.asarray((values - self.mean) / self.std)
