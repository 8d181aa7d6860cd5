"""A recorded table as a task: every point of a space of choices was really trained, to the full budget."""

from __future__ import annotations

import csv
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recur_tune.common.parsing import read_yaml
from recur_tune.config.trial import TrialConfig
from recur_tune.recurrences.registry import canonical
from recur_tune.search.record.space import Choice, Fixed, Parameter, Space
from recur_tune.search.record.space_parsing import read_space

from .task import COSTS, History, Task, best_of

Key = tuple[Any, ...]


class RecordedTable(Task):
    """Trials of a CSV file, or those of one base; a YAML file beside it, of the same name, holds their space and
    budget."""

    tolerance = 0.0

    def __init__(self, table: Path, base: str | None = None) -> None:
        self.name, self.search = table.stem, read_yaml(table.with_suffix(".yaml"))
        if base is not None:
            self.name, self.search["space"]["base"] = f"{table.stem}, {base}", base
        self.rows: dict[Key, History] = {}
        self._costs: dict[Key, tuple[float, float]] = {}
        self.columns, self.quality, rows = read_rows(table)
        histories: dict[Key, History] = defaultdict(list)
        for row in rows if base is None else (row for row in rows if row["base"] == base):
            key = tuple(value_of(row[name]) for name in self.columns)
            histories[key].append((int(row["tokens"]), float(row[self.quality])))
            self._costs[key] = tuple(float(row[cost]) for cost in COSTS)  # type: ignore[assignment]
        budget = self.spec().budget.tokens
        self.rows = {key: sorted(history) for key, history in histories.items() if max(history)[0] >= budget}
        values = np.array([(history[-1][1], *self._costs[key]) for key, history in self.rows.items()])
        self.longest = max(history[-1][0] for history in self.rows.values())
        self.reference = [float(1.01 * worst) for worst in values.max(axis=0)]
        self.front = best_of(values)

    def key(self, config: TrialConfig) -> Key:
        """The row of a trial; a share is not the field itself, and a mechanism's fields are only its own's."""
        fields = config.plain_values()
        return tuple(_share(name, fields) if "_of_" in name else fields.get(name) for name in self.columns)

    def history(self, config: TrialConfig) -> History:
        return self.rows[self.key(config)]

    def costs(self, config: TrialConfig) -> tuple[float, float]:
        return self._costs[self.key(config)]

    def missing(self) -> list[dict[str, Any]]:
        """Points of the space that are not recorded to the end."""
        space = read_space(self.search["space"])
        return [point for point in points(space) if self._key_of_point(point) not in self.rows]

    def _key_of_point(self, point: Mapping[str, Any]) -> Key:
        return tuple(point.get(name) for name in self.columns)


def read_rows(table: Path) -> tuple[list[str], str, list[dict[str, str]]]:
    """The columns that name a trial, the quality's, and all rows."""
    with table.open() as file:
        reader = csv.DictReader(file)
        rows, names = list(reader), list(reader.fieldnames or [])
    before = names.index("tokens")
    return names[:before], names[before + 1], rows


def value_of(text: str) -> Any:
    """A cell as the space has it."""
    if text == "":
        return None
    try:
        return float(text)
    except ValueError:
        return canonical(text)


def points(space: Space) -> Iterator[dict[str, Any]]:
    """Every point of a space without continuous ranges, by the sampler's names, the first parameter slowest."""
    yield from _points(list(space.parameters.items()))


def _points(waiting: list[tuple[str, Parameter]]) -> Iterator[dict[str, Any]]:
    if not waiting:
        yield {}
        return
    (name, parameter), rest = waiting[0], waiting[1:]
    for value in grid(name, parameter):
        below = parameter.below.get(value, {}) if isinstance(parameter, Choice) else {}
        own = {} if isinstance(parameter, Fixed) else {Space.label(name, parameter): value}
        for others in _points([*below.items(), *rest]):
            yield {**own, **others}


def grid(name: str, parameter: Parameter) -> list[Any]:
    """The values that a parameter can have, where they are not a continuum."""
    if isinstance(parameter, Choice):
        return list(parameter.values)
    if isinstance(parameter, Fixed):
        return [parameter.value]
    low, high = parameter.low, parameter.high
    step = parameter.step or (1 if isinstance(low, int) and isinstance(high, int) else None)
    if step is None:
        raise ValueError(f"space: {name} is a continuous range, of which no table has every value; list some.")
    return list(itertools.takewhile(lambda value: value <= high + 1e-9, itertools.count(low, step)))


def _share(name: str, fields: Mapping[str, Any]) -> float:
    part, _, whole = name.partition("_of_")
    return fields[part] / fields[whole]
