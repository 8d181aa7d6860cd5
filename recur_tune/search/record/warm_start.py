"""WarmStart of an earlier search for a new one: which trials to begin with, and what the sampler knows from the start.

The front of the earlier search is tried first, as near as the new space comes to it. Its trials are told to the sampler
too, but only where their numbers mean the same: the same base, corpus and budget of tokens, and the same objectives.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import front
from recur_tune.search.record.spec import SearchSpec

_SAME = ("base", "corpus", "tokenizer", "seed")  # fields of a trial without which numbers do not compare


@dataclass(frozen=True)
class EarlierTrial:
    """An earlier trial in the new space's own terms."""

    name: str
    point: dict[str, Any]  # by the sampler's names
    state: str  # complete or pruned
    values: list[float] | None  # of the objectives, where it is complete


@dataclass(frozen=True)
class WarmStart:
    """What an earlier search found out, as far as it helps a new one."""

    source: str
    spec: SearchSpec  # the new one's, which begins with the earlier front
    earlier: list[EarlierTrial]
    why_not: str  # the sampler is told nothing, in a few words; empty where it is

    @property
    def in_words(self) -> str:
        """What is made of it, in a line."""
        begins = f"begins with {len(self.spec.first)} trials from the front of {self.source}"
        return f"{begins}; its sampler knows {len(self.earlier)} trials{f' ({self.why_not})' if self.why_not else ''}."

    def as_json(self) -> str:
        """For the search directory; the spec lies there in a file of its own."""
        return json.dumps({"source": self.source, "told": [asdict(one) for one in self.earlier]}, indent=2) + "\n"


def warm_start_from(earlier: SearchDirectory, spec: SearchSpec) -> WarmStart:
    """Read an earlier search for a new one."""
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
        except ValueError:  # it lies outside of the new space
            continue
        known.append(EarlierTrial(trial.name, point, how, values if complete else None))
    return WarmStart(earlier.name, begins, known, "" if known else "none of them lies in this space")


def read_earlier_trials(text: str) -> list[EarlierTrial]:
    """What a search directory has of it."""
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
