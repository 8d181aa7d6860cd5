"""Features: a trial's fields as a row of numbers between 0 and 1, for a Gaussian process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from recur_tune.recurrences.registry import canonical
from recur_tune.search.propose.observations import Key, fields_key
from recur_tune.search.record.space import RECURRENCE, Choice, Fixed, Parameter, Range, Space

NEW = -1  # the number of a trial without validations
_ABSENT = 0.5  # the value of a number that the choice above it leaves out
_KEPT = 10_000  # rows, since the same trials are encoded again and again
_SPREAD = 4  # a choice of numbers whose largest is so many times the smallest has a log scale


class Features:
    """Encodes fields: a number is one column, on a log scale where the space says so or a choice spans a factor of
    four; a category is one-hot. `groups` has the parameter of each column, since the columns of a category share a
    length scale."""

    def __init__(self, space: Space) -> None:
        parameters = {name: one for name, one in space.all_parameters.items() if not isinstance(one, Fixed)}
        self._fixed = space.fixed
        self._encoders = [_encoder(name, one) for name, one in parameters.items()]
        widths = [encoder.width for encoder in self._encoders]
        self.groups = np.repeat(np.arange(len(widths)), widths)
        self._row = lru_cache(_KEPT)(self._encoded)

    def __call__(self, trials: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Trials by their fields as rows."""
        rows = [self._row(fields_key(fields)) for fields in trials]
        return np.array(rows, dtype=float).reshape(len(trials), len(self.groups))

    def _encoded(self, fields: Key) -> list[float]:
        whole = {**self._fixed, **dict(fields)}
        return [number for one in self._encoders for number in one(whole)]


class _Number:
    width = 1

    def __init__(self, name: str, low: float, high: float, log: bool, of: str | None = None) -> None:
        self.name, self.log, self.of = name, log, of
        self.low, self.high = (math.log(low), math.log(high)) if log else (low, high)

    def __call__(self, fields: Mapping[str, Any]) -> list[float]:
        value = fields.get(self.name)
        if value is None or self.high == self.low:
            return [_ABSENT]
        if self.of is not None:
            value = value / fields[self.of]
        return [((math.log(value) if self.log else value) - self.low) / (self.high - self.low)]


class _Category:
    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name, self.values, self.width = name, values, len(values)

    def __call__(self, fields: Mapping[str, Any]) -> list[float]:
        value = fields.get(self.name)
        return [float(one == value and type(one) is type(value)) for one in self.values]


def _encoder(name: str, parameter: Parameter) -> _Number | _Category:
    if isinstance(parameter, Range):
        return _Number(name, parameter.low, parameter.high, parameter.log, parameter.of)
    assert isinstance(parameter, Choice)
    values = [canonical(value) if name == RECURRENCE else value for value in parameter.values]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        low, high = min(values), max(values)
        return _Number(name, low, high, log=low > 0 and high >= _SPREAD * low)
    return _Category(name, values)


def rows_at(features: np.ndarray, share: Any, trials: Any) -> np.ndarray:
    """Rows for the process: features, the logarithm of a share of the budget's tokens, and the trial's number."""
    columns = [np.broadcast_to(column, len(features)) for column in (np.log2(share), trials)]
    return np.column_stack([features, *columns])


class LazyRows:
    """Rows for the process that are encoded when they are asked for, since of many it takes a bounded number: of trials
    by their places among `fields`, the share of the budget's tokens and the trial's number."""

    def __init__(
        self, features: Features, fields: Sequence[Mapping[str, Any]], places: np.ndarray, shares: np.ndarray,
        numbers: np.ndarray,
    ) -> None:  # fmt: skip
        self.features, self.fields = features, fields
        self.places, self.shares, self.numbers = places, shares, numbers

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, some: np.ndarray) -> np.ndarray:
        """These rows."""
        distinct, places = np.unique(self.places[some], return_inverse=True)
        encoded = self.features([self.fields[place] for place in distinct])
        return rows_at(encoded[places], self.shares[some], self.numbers[some])
