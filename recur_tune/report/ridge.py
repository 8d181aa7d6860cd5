"""Ridge regression of an objective on the fields of the trials that have it: quadratic in the logarithms of numbers.

Objectives are products more than sums, and a learning rate has its best somewhere in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recur_tune.config.fields import own_fields
from recur_tune.config.trial import TrialConfig

_RIDGES = (0.1, 1.0, 10.0)  # the stronger, the nearer to nothing is held what the trials do not tell apart


@dataclass(frozen=True)
class Columns:
    """Trials as rows of numbers: for every field that is a number its logarithm and the square of that, and for every
    word whether it is the field's."""

    numbers: Mapping[str, tuple[float, float, float]]  # what is added, then the logarithms' mean and deviation
    words: Sequence[tuple[str, Any]]

    @classmethod
    def of_trials(cls, trials: Sequence[TrialConfig], space: Sequence[TrialConfig], fields: Collection[str]) -> Columns:
        """The columns in which trials differ, of these fields alone; what they never varied tells nothing."""
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
        """A row for each trial; a number that it does not have is as the mean of the others'."""
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
    """How strong a ridge tells most of a trial that is left out."""
    return min(_RIDGES, key=lambda ridge: float((left_out(rows, values, ridge) ** 2).mean()))


def fitted(rows: np.ndarray, values: np.ndarray, ridge: float) -> Callable[[np.ndarray], np.ndarray]:
    """Ridge regression: what it predicts for other rows."""
    middle, level = rows.mean(axis=0), values.mean()
    weights = _solution(rows - middle, ridge) @ (values - level)
    return lambda others: level + (others - middle) @ weights


def left_out(rows: np.ndarray, values: np.ndarray, ridge: float) -> np.ndarray:
    """For each row the error of the model that all others make."""
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
