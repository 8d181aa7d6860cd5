"""Ridge regression of an objective on the trials' fields, quadratic in the logarithms of numbers.

Logarithms, since objectives are rather products than sums; squares, since a learning rate has an optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recur_tune.config.fields import own_fields
from recur_tune.config.trial import TrialConfig

_RIDGES = (0.1, 1.0, 10.0)  # strengths of the penalty


@dataclass(frozen=True)
class Columns:
    """Feature columns of trials: the logarithm of every number and its square, and a 0/1 column for every word."""

    numbers: Mapping[str, tuple[float, float, float]]  # offset, mean and standard deviation of the logarithms
    words: Sequence[tuple[str, Any]]

    @classmethod
    def of_trials(cls, trials: Sequence[TrialConfig], space: Sequence[TrialConfig], fields: Collection[str]) -> Columns:
        """Columns of these fields in which the trials differ."""
        found = _by_field(trials, fields)
        numbers = {name: [one for one in values if _is_number(one)] for name, values in found.items()}
        words = [
            (name, word)
            for name, values in found.items()
            for word in dict.fromkeys(value for value in values if not _is_number(value))
            if any(value != word for value in values)
        ]
        everywhere = _by_field(space, fields)
        known = {}
        for name, values in numbers.items():
            if len(set(values)) > 1:
                least = min(one for one in [*values, *everywhere.get(name, ())] if _is_number(one))
                added = 0.0 if least > 0 else 1.0 - least
                logs = np.log(np.array(values) + added)
                known[name] = added, float(logs.mean()), float(logs.std())
        return cls(known, words)

    def rows(self, configs: Sequence[TrialConfig]) -> np.ndarray:
        """A row for each trial; a missing number is the mean of the others."""
        count = len(self.numbers)
        rows = np.zeros((len(configs), 2 * count + len(self.words)))
        for row, config in zip(rows, configs, strict=True):
            fields = own_fields(config)
            for at, (name, (added, mean, deviation)) in enumerate(self.numbers.items()):
                if _is_number(fields.get(name)):
                    row[at] = (math.log(fields[name] + added) - mean) / deviation
                    row[count + at] = row[at] ** 2 - 1
            for at, (name, word) in enumerate(self.words, 2 * count):
                row[at] = name in fields and fields[name] == word
        return rows


def best_ridge(rows: np.ndarray, values: np.ndarray) -> float:
    """The penalty with the smallest leave-one-out error."""
    return min(_RIDGES, key=lambda ridge: float((left_out(rows, values, ridge) ** 2).mean()))


def fitted(rows: np.ndarray, values: np.ndarray, ridge: float) -> Callable[[np.ndarray], np.ndarray]:
    """Ridge regression, as a function that predicts other rows."""
    middle, level = rows.mean(axis=0), values.mean()
    weights = _solution(rows - middle, ridge) @ (values - level)
    return lambda others: level + (others - middle) @ weights


def left_out(rows: np.ndarray, values: np.ndarray, ridge: float) -> np.ndarray:
    """Leave-one-out errors: of each row under the model of all others."""
    centred = rows - rows.mean(axis=0)
    hat = centred @ _solution(centred, ridge) + 1 / len(rows)
    return (values - hat @ values) / np.maximum(1 - np.diag(hat), 1e-9)


def _solution(centred: np.ndarray, ridge: float) -> np.ndarray:
    return np.linalg.solve(centred.T @ centred + ridge * np.eye(centred.shape[1]), centred.T)


def _by_field(configs: Sequence[TrialConfig], fields: Collection[str]) -> dict[str, list[Any]]:
    """The values of every field that these trials have."""
    found: dict[str, list[Any]] = {}
    for config in configs:
        for name, value in own_fields(config).items():
            if name in fields:
                found.setdefault(name, []).append(value)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
