"""Warm start: a new search begins with what earlier ones have learned.

Trials whose numbers compare (the same base, corpus, token budget and objectives) are told to the sampler like trials of
its own, and the front of their search is tried first, moved to the nearest points of the new space. From all others,
which may be of another corpus, base or budget, the sampler `known-costs` expects: it keeps their learning curves.
Optuna's samplers cannot, and begin with those fronts too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.units import counted
from recur_tune.search.record.confirmation import quality_of
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import front
from recur_tune.search.record.knowledge import Curve, EarlierCurve, EarlierSearch, EarlierTrial, Knowledge
from recur_tune.search.record.space import Range, Space
from recur_tune.search.record.spec import KNOWN_COSTS, SearchSpec
from recur_tune.search.record.state import TrialRecord

_SAME = ("base", "corpus", "tokenizer", "seed")  # fields that have to be equal for numbers to be comparable


@dataclass(frozen=True)
class WarmStart:
    """What a new search takes from earlier ones."""

    spec: SearchSpec  # the new search's, with earlier fronts as its first trials
    knowledge: Knowledge
    remarks: tuple[str, ...]  # a line for each earlier search


def earlier_searches(results: Path, names: Sequence[str]) -> list[SearchDirectory]:
    """Open earlier searches by their names."""
    return [SearchDirectory.open(results, name, named="from") for name in names]


def warm_start_from(earlier: Sequence[SearchDirectory], spec: SearchSpec) -> WarmStart:
    """Read earlier searches for a new one with this spec."""
    names = [one.name for one in earlier]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"from: {twice} stands twice; a search teaches once, so name it once.")
    firsts, told, searches, remarks = [*spec.first], list[EarlierTrial](), list[EarlierSearch](), list[str]()
    for directory in earlier:
        source = _Source(directory, spec)
        begins = source.firsts if source.told or spec.sampler.name != KNOWN_COSTS else []
        new = [one for one in begins if one not in firsts]
        firsts += new
        told += source.told
        searches += [source.search] if spec.sampler.name == KNOWN_COSTS and source.search.curves else []
        remarks.append(source.in_words(len(new)))
    changed = spec.model_copy(update={"first": tuple(firsts)})
    return WarmStart(changed, Knowledge(tuple(told), tuple(searches)), tuple(remarks))


class _Source:
    """An earlier search, as the new space sees it."""

    def __init__(self, directory: SearchDirectory, spec: SearchSpec) -> None:
        self.name, self.before, self.spec, self.space = directory.name, directory.spec, spec, spec.parsed_space
        trials = list(directory.state().trials.values())
        known = {one.number: curve for one in trials if (curve := self._curve(one))}
        if not known:
            raise UserError(
                f"from: no trial of {self.name} has ended yet, so there is nothing to learn from it; leave it out, or "
                f"wait until `recur-tune status {self.name}` tells of one."
            )
        self._check_fields()
        self.why_not = _not_comparable(self.before, spec)
        points = {} if self.why_not else {one.number: point for one in trials if (point := self._point(one))}
        self.told = [told for one in trials if (point := points.get(one.number)) and (told := self._told(one, point))]
        if not (self.told or self.why_not):
            self.why_not = "none of its trials lies in this space"
        best = front(trials, self.before.objectives)
        nearest = [self.space.closest(self.before.trial_config(one.params).model_dump()) for one in best]
        self.firsts = [self.space.fields_of(point) for point in nearest]
        as_its_own = {one.name for one in self.told}
        others = [one for one in trials if one.number in known and one.name not in as_its_own]
        curves = [EarlierCurve(self._fields(one), self._shares(known[one.number])) for one in others]
        self.search = EarlierSearch(self.name, tuple(curves), tuple(nearest))

    def in_words(self, firsts: int) -> str:
        """What the new search takes from it, in a line."""
        said = [f"begins with {counted(firsts, 'trial')} from its front"] if firsts else []
        why = f" ({self.why_not})" if self.why_not else ""
        expects = self.spec.sampler.name == KNOWN_COSTS and self.search.curves
        if self.told:
            said.append(f"knows {counted(len(self.told), 'trial')} of it as its own")
        if expects:
            curves = counted(len(self.search.curves), "learning curve")
            said.append(f"expects from {curves} of it{why}, as far as its own trials agree")
        if not (self.told or expects):
            said.append(f"knows none of its trials{why}")
        return f"{self.name}: the search {', '.join(said)}."

    def _check_fields(self) -> None:
        """Refuse a search that varied nothing which the new one varies."""
        mine, theirs = self.space.names, self.before.parsed_space.names
        if mine and not {*mine} & {*theirs}:
            raise UserError(
                f"from: {self.name} varied {', '.join(theirs) or 'nothing'}, and this space varies {', '.join(mine)}; "
                "they share no field, so there is nothing to learn from it."
            )

    def _curve(self, trial: TrialRecord) -> Curve:
        """Tokens and quality at its validations; empty where it has not ended or paused, or has no finite quality."""
        if not (trial.paused_at_rung or trial.state in ("complete", "pruned")):
            return ()
        own, wanted = quality_of(self.before), quality_of(self.spec)
        qualities = [(one.tokens, one.metrics.get(wanted, one.metrics.get(own, 0.0))) for one in trial.validations]
        return tuple((tokens, quality) for tokens, quality in qualities if 0 < quality < math.inf)

    def _shares(self, curve: Curve) -> Curve:
        return tuple((min(1.0, tokens / self.before.budget.tokens), quality) for tokens, quality in curve)

    def _fields(self, trial: TrialRecord) -> dict[str, Any]:
        """Its fields as far as the new space has them, in their own values: a number may lie outside of a range."""
        known = self.before.trial_config(trial.params).plain_values()
        return {name: known[name] for name in _names(self.space) if known.get(name) is not None}

    def _point(self, trial: TrialRecord) -> dict[str, Any] | None:
        try:
            return self.space.point(trial.params)
        except ValueError:  # it is outside of the new space
            return None

    def _told(self, trial: TrialRecord, point: dict[str, Any]) -> EarlierTrial | None:
        values = trial.values(self.spec.objectives) if trial.state == "complete" else None
        complete = values is not None and all(map(math.isfinite, values))
        how = "pruned" if trial.paused_at_rung else trial.state
        if not complete and how != "pruned":
            return None
        return EarlierTrial(trial.name, point, how, values if complete else None, self._curve(trial))


def _names(space: Space) -> Iterator[str]:
    """The fields that the space varies, and those that they are shares of."""
    for name, parameter in space.all_parameters.items():
        yield name
        if isinstance(parameter, Range) and parameter.of is not None:
            yield parameter.of


def _not_comparable(before: SearchSpec, spec: SearchSpec) -> str:
    for field in _SAME:
        if before.parsed_space.field(field) != spec.parsed_space.field(field):
            return f"its {field} was another"
    if before.budget.tokens != spec.budget.tokens:
        return "its trials had another budget of tokens"
    if set(before.objectives) != set(spec.objectives):
        return "it had other objectives"
    return ""
