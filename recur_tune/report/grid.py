"""Grid over a search space, and Sobol's total effects of its parameters."""

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

_ALL_OF = 8  # a range with at most so many values is enumerated
# Chebyshev's quadrature: three points of equal weight with the mean and variance of the uniform distribution.
_PLACES = (0.5 - 0.125**0.5, 0.5, 0.5 + 0.125**0.5)


@dataclass(frozen=True)
class Grid:
    """Trials on lines through many points of a space, one line per point and parameter."""

    configs: Sequence[TrialConfig]
    lines: Mapping[str, np.ndarray]  # by the sampler's names: [line, value] -> index of the trial
    is_whole: bool  # whether every point of the space has its lines

    @classmethod
    def over(cls, spec: SearchSpec, fields: Collection[str], most: int) -> Grid:
        """Lines along every parameter that decides these fields, through all points of the space or through `most`
        random ones. Trials that agree in the fields are one."""
        space = spec.parsed_space
        axes = axes_of(space, fields)
        rest = {name: parameter.extremes()[0] for name, parameter in space.all_parameters.items()}
        shape = tuple(map(len, axes.values()))
        whole = math.prod(shape) <= most
        points = list(itertools.product(*map(range, shape))) if whole else _drawn(shape, most)
        configs: list[TrialConfig] = []
        known: dict[Any, int] = {}  # indices of trials, by their point on the grid and by their fields

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
        """Sobol's total effects, normalised to 1, from the function's value for every trial.

        A parameter's total effect is the variance that is left when only this parameter is unknown. It is exactly 0
        where the function is constant along the axis.
        """
        left = dict.fromkeys(self.lines, 0.0)
        for label, places in self.lines.items():
            along = values[places]
            if np.ptp(along, axis=1).any():
                left[label] = float(along.var(axis=1).mean())
        whole = sum(left.values())
        return {label: share / whole if whole else 0.0 for label, share in left.items()}


def _drawn(shape: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Random points of a grid, always the same."""
    return list(map(tuple, np.random.default_rng(0).integers(0, shape, (count, len(shape))).tolist()))


def axes_of(space: Space, fields: Collection[str]) -> dict[str, Sequence[Any]]:
    """The values of every parameter that decides one of these fields: the field itself, a field below one of its
    values, or one that is a share of it."""
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
