"""Warm start: a new search begins with the front of an earlier one, and its sampler knows the earlier trials.

The front is moved to the nearest points of the new space. The sampler is told the earlier trials only where their
numbers are comparable: the same base, corpus, token budget and objectives.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from recur_tune.common.units import counted
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import front
from recur_tune.search.record.spec import SearchSpec

_SAME = ("base", "corpus", "tokenizer", "seed")  # fields that have to be equal for numbers to be comparable


@dataclass(frozen=True)
class EarlierTrial:
    """A trial of an earlier search, as a point of the new space."""

    name: str
    point: dict[str, Any]  # by the sampler's names
    state: str  # complete or pruned
    values: list[float] | None  # of the objectives; None where it was pruned


@dataclass(frozen=True)
class WarmStart:
    """What a new search takes from an earlier one."""

    source: str
    spec: SearchSpec  # the new search's, with the earlier front as its first trials
    earlier: list[EarlierTrial]
    why_not: str  # the sampler is told no trial; empty where it is told some

    @property
    def in_words(self) -> str:
        """The warm start in a line of text."""
        begins = f"begins with {counted(len(self.spec.first), 'trial')} from the front of {self.source}"
        known = counted(len(self.earlier), "trial")
        return f"{begins}; its sampler knows {known}{f' ({self.why_not})' if self.why_not else ''}."

    def as_json(self) -> str:
        """The earlier trials for `knowledge.json`; the spec has a file of its own."""
        return json.dumps({"source": self.source, "told": [asdict(one) for one in self.earlier]}, indent=2) + "\n"


def warm_start_from(earlier: SearchDirectory, spec: SearchSpec) -> WarmStart:
    """Read an earlier search for a new one with this spec."""
    state, before, space = earlier.state(), earlier.spec, spec.parsed_space
    firsts = [*spec.first]
    for trial in front(state.trials.values(), before.objectives):
        fields = space.fields_of(space.closest(before.trial_config(trial.params).model_dump()))
        if fields not in firsts:
            firsts.append(fields)
    begins = spec.model_copy(update={"first": tuple(firsts)})
    if why_not := _not_comparable(before, spec):
        return WarmStart(earlier.name, begins, [], why_not)
    known = []
    for trial in state.trials.values():
        values = trial.values(spec.objectives) if trial.state == "complete" else None
        complete = values is not None and all(map(math.isfinite, values))
        how = "pruned" if trial.paused_at_rung else trial.state
        if not complete and how != "pruned":
            continue
        try:
            point = space.point(trial.params)
        except ValueError:  # it is outside of the new space
            continue
        known.append(EarlierTrial(trial.name, point, how, values if complete else None))
    return WarmStart(earlier.name, begins, known, "" if known else "none of them lies in this space")


def read_earlier_trials(text: str) -> list[EarlierTrial]:
    """The earlier trials from `knowledge.json`."""
    return [EarlierTrial(**one) for one in json.loads(text)["told"]]


def _not_comparable(before: SearchSpec, spec: SearchSpec) -> str:
    for field in _SAME:
        if before.parsed_space.field(field) != spec.parsed_space.field(field):
            return f"its {field} was another"
    if before.budget.tokens != spec.budget.tokens:
        return "its trials had another budget of tokens"
    if set(before.objectives) != set(spec.objectives):
        return "it had other objectives"
    return ""
