"""Trials as the process sees them, and how they are looked up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recur_tune.cost import descriptors
from recur_tune.search.record.objectives import COSTS
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, TrialRecord

Fields = Mapping[str, Any]
Key = tuple[tuple[str, Any], ...]

_PRICED = frozenset[str]().union(*(cost.fields for cost in descriptors.COSTS.values()))


@dataclass(frozen=True)
class ObservedTrial:
    """A trial as the process sees it: its curve as (tokens, quality), and whether it may still reach its end."""

    number: int
    fields: Fields
    costs: Mapping[str, float]
    curve: tuple[tuple[int, float], ...] = ()
    complete: bool = False
    pending: bool = False
    paused: bool = False  # at a rung: it reaches its end only where it is resumed
    repeats: int | None = None  # the trial that it is, with another seed


def observed_trials(trials: Iterable[TrialRecord], quality: str) -> list[ObservedTrial]:
    """Trials of a search's log, without values that are no numbers."""
    return [
        ObservedTrial(
            one.number, one.params, one.costs,
            tuple((v.tokens, v.metrics[quality]) for v in one.validations if 0 < v.metrics.get(quality, 0) < math.inf),
            one.state == "complete", one.state not in ENDED and not one.paused_at_rung, one.paused_at_rung, one.repeats,
        )
        for one in trials
    ]  # fmt: skip


def fields_key(fields: Fields) -> Key:
    """Fields as something that can be looked up."""
    return tuple(sorted(fields.items()))


def cost_key(fields: Fields) -> Key:
    """Those of the fields that enter a cost: whoever has the same costs the same."""
    return fields_key({name: value for name, value in fields.items() if name in _PRICED})


def quality_of(spec: SearchSpec) -> str:
    """The one objective that has to be measured."""
    [quality] = [name for name in spec.objectives if name not in COSTS]
    return quality
