"""First round: the fields that the first trials leave open.

Before there are data nothing is expected of a trial, so these fields are chosen for what the first trials tell
together. Each takes about the median time of all that the first trials could be: the cheapest say little about the
others, and a dear one keeps its worker for long. As far as that leaves a choice the design is balanced: values are
taken that few of the other first trials have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from recur_tune.search.record.space import Space

Point = Mapping[str, Any]  # in the sampler's own names
_COMPLETIONS, _NEAREST = 50, 8  # of a point; those of them that are nearest to the median may be taken


def completed(
    points: Mapping[str, Point], space: Space, time: Callable[[Mapping[str, Any]], float | None],
    rng: np.random.Generator,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """The same points, by role, without open fields. `time` is a trial's by its fields, None where it is not allowed;
    a point of which no trial is allowed is left as it is."""
    drawn = {role: [space.sample(rng, point) for _ in range(_COMPLETIONS)] for role, point in points.items()}
    timed = {
        role: [(one, math.log(taken)) for one, fields in some if (taken := time(fields)) is not None]
        for role, some in drawn.items()
    }
    middle = median(taken for some in timed.values() for _, taken in some) if any(timed.values()) else 0.0
    whole: dict[str, dict[str, Any]] = {}
    for role, some in timed.items():
        near = sorted(some, key=lambda pair: abs(pair[1] - middle))[:_NEAREST]
        others = [*whole.values()]
        whole[role] = min((one for one, _ in near), key=lambda one: _repeated(one, others), default={**points[role]})
    return whole


def _repeated(point: Point, others: Sequence[Point]) -> int:
    """How many values of other points it has again."""
    return sum(other.get(name) == value for other in others for name, value in point.items())
