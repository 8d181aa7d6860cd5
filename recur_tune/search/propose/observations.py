"""Trials as the Gaussian process sees them, and keys to look them up by."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recur_tune.cost import descriptors
from recur_tune.search.record.state import ENDED, SearchState, TrialRecord

Fields = Mapping[str, Any]
Key = tuple[tuple[str, Any], ...]

TIME = "flops_per_token"  # to which the time of a token is taken to be proportional
_COST_FIELDS = frozenset[str]().union(*(cost.fields for cost in descriptors.COSTS.values()))


@dataclass(frozen=True)
class ObservedTrial:
    """A trial as the process sees it: its learning curve as (tokens, quality), and whether it may still reach its
    end."""

    number: int
    fields: Fields
    costs: Mapping[str, float]
    curve: tuple[tuple[int, float], ...] = ()
    complete: bool = False
    pending: bool = False
    paused: bool = False  # at a rung: it reaches its end only where it is resumed
    repeats: int | None = None  # the trial that it repeats with another seed


def observed_trials(trials: Iterable[TrialRecord], quality: str) -> list[ObservedTrial]:
    """Trials of a search's log, without values that are not finite."""
    return [
        ObservedTrial(
            one.number, one.params, one.costs,
            tuple((v.tokens, v.metrics[quality]) for v in one.validations if 0 < v.metrics.get(quality, 0) < math.inf),
            one.state == "complete", one.state not in ENDED and not one.paused_at_rung, one.paused_at_rung, one.repeats,
        )
        for one in trials
    ]  # fmt: skip


def observed_state(state: SearchState, live: Container[int], quality: str) -> list[ObservedTrial]:
    """All trials of a search; a paused one that Ray still has, or has again, counts as pending."""
    known = observed_trials((*state.trials.values(), *state.repeats.values()), quality)
    return [replace(one, paused=False, pending=True) if one.paused and one.number in live else one for one in known]


def fields_key(fields: Fields) -> Key:
    """A trial's fields as a key."""
    return tuple(sorted(fields.items()))


def cost_key(fields: Fields) -> Key:
    """The fields that costs depend on, as a key: trials with the same key cost the same."""
    return fields_key({name: value for name, value in fields.items() if name in _COST_FIELDS})
