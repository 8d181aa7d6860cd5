"""A space as a grid, and how much a function of its trials changes along each axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recur_tune.config.fields import own_values
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.space import Choice, Fixed, Parameter, Range, Space
from recur_tune.search.record.spec import SearchSpec

_ALL_OF = 8  # values of a range that are taken one by one
# Three places that weigh the same and have the mean and variance of all between 0 and 1: Chebyshev's quadrature.
_PLACES = (0.5 - 0.125**0.5, 0.5, 0.5 + 0.125**0.5)


@dataclass(frozen=True)
class Grid:
    """Trials along the axes of a space: through each of many points, a line in the direction of every parameter."""

    configs: Sequence[TrialConfig]
    lines: Mapping[str, np.ndarray]  # by the sampler's names: [line, value] -> place among the trials
    is_whole: bool  # every point of the space has its lines

    @classmethod
    def over(cls, spec: SearchSpec, fields: Collection[str], most: int) -> Grid:
        """Lines in the direction of every parameter that decides these fields; through all points of the space, or
        through so many drawn ones where there are more. Trials that differ in none of the fields are the same."""
        space = spec.parsed_space
        axes = axes_of(space, fields)
        rest = {name: parameter.extremes()[0] for name, parameter in space.all_parameters.items()}
        shape = tuple(map(len, axes.values()))
        whole = math.prod(shape) <= most
        points = list(itertools.product(*map(range, shape))) if whole else _drawn(shape, most)
        configs: list[TrialConfig] = []
        known: dict[Any, int] = {}  # places of trials, by their place on the grid and by their fields

        def place(point: tuple[int, ...]) -> int:
            if point not in known:
                values = {name: values[at] for (name, values), at in zip(axes.items(), point, strict=True)}
                chosen = space.fields_at(rest | values)
                has = own_values(chosen.get("recurrence"), chosen)
                key = tuple(item for item in has.items() if item[0] in fields)
                if key not in known:
                    known[key] = len(configs)
                    configs.append(spec.trial_config(chosen))
                known[point] = known[key]
            return known[point]

        lines = {}
        for axis, (name, values) in enumerate(axes.items()):
            starts = dict.fromkeys((*point[:axis], 0, *point[axis + 1 :]) for point in points)
            along = [[place((*one[:axis], at, *one[axis + 1 :])) for at in range(len(values))] for one in starts]
            lines[space.label(name, space.all_parameters[name])] = np.array(along)
        return cls(configs, lines, whole)

    def effects(self, values: np.ndarray) -> dict[str, float]:
        """Each parameter's share of a function's variance, from its value for every trial; together 1.

        What counts is the variance that is left when only this parameter is unknown: Sobol's total effect. Where
        nothing changes along an axis its share is exactly 0.
        """
        left = dict.fromkeys(self.lines, 0.0)
        for label, places in self.lines.items():
            along = values[places]
            if np.ptp(along, axis=1).any():
                left[label] = float(along.var(axis=1).mean())
        whole = sum(left.values())
        return {label: share / whole if whole else 0.0 for label, share in left.items()}


def _drawn(shape: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Points of a grid by chance, the same every time."""
    return list(map(tuple, np.random.default_rng(0).integers(0, shape, (count, len(shape))).tolist()))


def axes_of(space: Space, fields: Collection[str]) -> dict[str, Sequence[Any]]:
    """The values of every parameter that decides one of these fields: its own, one that stands below its values, or one
    that is a share of it."""
    parameters = {name: one for name, one in space.all_parameters.items() if not isinstance(one, Fixed)}
    deciding = {name for name, one in parameters.items() if {name, *_below(one)} & set(fields)}
    deciding |= {one.of for name, one in parameters.items() if name in deciding and isinstance(one, Range) and one.of}
    return {name: _values(one) for name, one in parameters.items() if name in deciding}


def _below(parameter: Parameter) -> set[str]:
    """The fields that stand below a choice's values, at any depth."""
    inner = [item for below in getattr(parameter, "below", {}).values() for item in below.items()]
    return {name for name, _ in inner}.union(*(_below(one) for _, one in inner))


def _values(parameter: Choice | Range) -> Sequence[Any]:
    if isinstance(parameter, Choice):
        return parameter.values
    whole = isinstance(parameter.low, int) and isinstance(parameter.high, int)
    if step := parameter.step or (1 if whole and not parameter.log else None):
        count = round((parameter.high - parameter.low) / step) + 1
        if count <= _ALL_OF:
            return [parameter.closest(parameter.low + at * step) for at in range(count)]
    low, high = (math.log(end) if parameter.log else end for end in (parameter.low, parameter.high))
    places = [low + place * (high - low) for place in _PLACES]
    return [parameter.closest(math.exp(place) if parameter.log else place) for place in places]
