"""Confirmation of a front: its trials are repeated with other seeds, which removes selection bias.

A trial is on the front partly by chance, so that its own quality is biased. Means here are over further seeds alone.
Their standard deviation is pooled over all trials, since each has only a few seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recur_tune.recurrences.registry import NONE
from recur_tune.search.record.front import front, non_dominated
from recur_tune.search.record.objectives import COSTS, SAME_COST
from recur_tune.search.record.space import RECURRENCE
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, SearchState, TrialRecord

_CONFIDENCE = 0.95  # of the test that two means differ


@dataclass(frozen=True)
class ConfirmationPlan:
    """A plan to repeat the front: the number of further seeds, and the split to score them on."""

    seeds: int
    split: str = "test"

    @property
    def command(self) -> list[str]:
        """The command with this plan, without the search's name."""
        return ["confirm", "--seeds", str(self.seeds), "--split", self.split]

    def missing(self, state: SearchState, spec: SearchSpec) -> list[tuple[TrialRecord, int]]:
        """The trials and seeds that are still to train, one seed of all trials before the next."""
        seeds = {trial.number: missing_seeds(state, spec, trial, self) for trial in points_to_confirm(state, spec)}
        rounds = range(max(map(len, seeds.values()), default=0))
        return [
            (state.trials[number], own[turn]) for turn in rounds for number, own in seeds.items() if turn < len(own)
        ]


@dataclass(frozen=True)
class ConfirmedTrial:
    """A trial with the results of its further seeds."""

    trial: TrialRecord
    values: tuple[float, ...]  # quality on the split, by seed
    validation: float  # mean validation quality over the same seeds, to compare with the search's own
    standard_error: float  # of the mean; NaN where no trial has two seeds
    on_front: bool  # of the means over further seeds
    no_better_than: str  # the name of a trial that costs no more and is not significantly worse; or empty
    rival: bool  # a plain model off the front, repeated to compare with a recurrent one

    @property
    def mean(self) -> float:
        """The mean quality over the further seeds."""
        return sum(self.values) / len(self.values)

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if math.isnan(self.standard_error):
            better = f"; {self.no_better_than} is no worse and costs no more" if self.no_better_than else ""
            return f"one seed has no standard error{better}"
        if not self.no_better_than:
            return "holds"
        if self.on_front:
            return f"within noise of {self.no_better_than}, which costs no more"
        if self.rival:
            return f"plain rival: {self.no_better_than} beats it and costs no more"
        return f"chance: {self.no_better_than} is as good and costs no more"


@dataclass(frozen=True)
class Confirmation:
    """The results of further seeds for a front."""

    quality: str
    split: str
    points: list[ConfirmedTrial]  # best mean first
    spread: float  # standard deviation over seeds, pooled over all trials
    freedom: int  # its degrees of freedom
    unconfirmed: list[TrialRecord]  # points that wait for further seeds, or have none on this split

    @property
    def is_whole(self) -> bool:
        """Whether every point is confirmed. Before that, means of some say nothing about which point is best."""
        return not self.unconfirmed

    @property
    def unconfirmed_names(self) -> str:
        """The points that are not confirmed, as text."""
        return ", ".join(trial.name for trial in self.unconfirmed)

    def of(self, trial: TrialRecord) -> ConfirmedTrial | None:
        """The results of a trial; None where it has no further seeds."""
        return next((point for point in self.points if point.trial.number == trial.number), None)

    def rows(self) -> list[dict[str, Any]]:
        """The results as rows of plain values."""
        return [
            {
                "trial": point.trial.name, "params": point.trial.params, "found": point.trial.value(self.quality),
                "validation": point.validation, "mean": point.mean, "standard_error": point.standard_error,
                "seeds": len(point.values), "values": list(point.values), **point.trial.costs,
                "on_front": point.on_front, "no_better_than": point.no_better_than,
            }
            for point in self.points
        ]  # fmt: skip


def points_to_confirm(state: SearchState, spec: SearchSpec) -> list[TrialRecord]:
    """The front, and the plain rival of each recurrent trial on it; the cheapest first."""
    best = front(state.trials.values(), spec.objectives)
    rivals = (plain_rival(trial, state.trials.values(), spec) for trial in best)
    chosen = {trial.number: trial for trial in [*best, *(rival for rival in rivals if rival)]}
    costs = [name for name in spec.objectives if name in COSTS]
    return sorted(chosen.values(), key=lambda trial: (trial.values(costs) or [], trial.number))


def plain_rival(trial: TrialRecord, trials: Iterable[TrialRecord], spec: SearchSpec) -> TrialRecord | None:
    """The best plain trial that costs no more than a recurrent one; None where there is none."""
    if spec.trial_config(trial.params).mechanism is None:
        return None
    costs = [name for name in spec.objectives if name in COSTS]
    affordable = [
        one
        for one in trials
        if one.state == "complete"
        and spec.trial_config(one.params).mechanism is None
        and all(one.costs[name] <= trial.costs[name] * (1 + SAME_COST) for name in costs)
    ]
    quality = quality_of(spec)
    return min(affordable, key=lambda one: one.value(quality) or math.inf, default=None)


def untried_rivals(state: SearchState, spec: SearchSpec) -> dict[str, dict[str, Any]]:
    """Plain trials that the search never tried, by the name of the recurrent trial on the front that has no other plain
    rival: the same settings without its recurrence, where the space has such a trial. In the sampler's own names."""
    space, found = spec.parsed_space, dict[str, dict[str, Any]]()
    tried = [trial.params for trial in state.trials.values()]
    for trial in front(state.trials.values(), spec.objectives):
        is_plain = spec.trial_config(trial.params).mechanism is None
        if is_plain or plain_rival(trial, state.trials.values(), spec) is not None:
            continue
        point = space.closest({**trial.params, RECURRENCE: NONE})
        params = space.fields_of(point)
        if params.get(RECURRENCE) == NONE and params not in tried:
            tried.append(params)
            found[trial.name] = point
    return found


def quality_of(spec: SearchSpec) -> str:
    """The first quality among a search's objectives."""
    return next(name for name in spec.objectives if name not in COSTS)


def missing_seeds(state: SearchState, spec: SearchSpec, trial: TrialRecord, plan: ConfirmationPlan) -> list[int]:
    """The seeds that a trial lacks to have as many repeats as planned."""
    tried = state.repeats_of(trial)
    useful = [one for one in tried if one.state != "failed" and one.split == plan.split]
    own = spec.trial_config(trial.params).seed
    used = {own, *(one.seed for one in tried)}
    fresh = (seed for seed in itertools.count(own + 1) if seed not in used)
    return list(itertools.islice(fresh, max(0, plan.seeds - len(useful))))


def splits_needed(state: SearchState, confirm: ConfirmationPlan | None) -> list[str]:
    """The splits of the corpus that trials will read."""
    scored = {one.split for one in state.repeats.values() if one.split and one.state not in ENDED}
    return ["train", "validation", *sorted((scored | ({confirm.split} if confirm else set())) - {"validation"})]


def confirmation(state: SearchState, spec: SearchSpec, split: str = "test") -> Confirmation | None:
    """The results of further seeds on a split; None where no trial has any."""
    quality = quality_of(spec)
    values: dict[int, list[float]] = {}
    for one in state.repeats.values():
        if (
            one.repeats is not None
            and one.state == "complete"
            and math.isfinite(one.scores.get(split, {}).get(quality, math.nan))
        ):
            values.setdefault(one.repeats, []).append(one.scores[split][quality])
    if not values:
        return None
    spread, freedom = pooled_spread(list(values.values()))
    costs = [name for name in spec.objectives if name in COSTS]
    trials = [state.trials[number] for number in values]
    means = [sum(values[trial.number]) / len(values[trial.number]) for trial in trials]
    table = np.array([[mean, *trial.costs_of(costs)] for mean, trial in zip(means, trials, strict=True)])
    validations = {trial.number: _mean_validation(state, trial, quality) for trial in trials}
    found = {trial.number for trial in front(state.trials.values(), spec.objectives)}
    points = []
    for trial, best in zip(trials, non_dominated(table), strict=True):
        equal = _no_worse_and_cheaper(trial, trials, values, costs, spread, freedom)
        error = spread / math.sqrt(len(values[trial.number]))
        rival = trial.number not in found and spec.trial_config(trial.params).mechanism is None
        points.append(
            ConfirmedTrial(
                trial, tuple(values[trial.number]), validations[trial.number], error, bool(best), equal, rival
            )
        )
    unconfirmed = [
        trial
        for trial in points_to_confirm(state, spec)
        if trial.number not in values or any(one.state not in ENDED for one in _on_split(state, trial, split))
    ]
    return Confirmation(quality, split, sorted(points, key=lambda point: point.mean), spread, freedom, unconfirmed)


def _on_split(state: SearchState, trial: TrialRecord, split: str) -> list[TrialRecord]:
    """A trial's repeats that are scored on a split, in any state."""
    return [one for one in state.repeats_of(trial) if one.split == split]


def _mean_validation(state: SearchState, trial: TrialRecord, quality: str) -> float:
    known = [one.value(quality) for one in state.repeats_of(trial) if one.state == "complete"]
    values = [value for value in known if value is not None]
    return sum(values) / len(values) if values else math.nan


def pooled_spread(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The pooled standard deviation within groups, and its degrees of freedom; NaN where no group has two values."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom == 0:
        return math.nan, 0
    squares = sum(float(np.var(group)) * len(group) for group in groups)
    return math.sqrt(squares / freedom), freedom


def is_beyond_noise(difference: float, one: int, other: int, spread: float, freedom: int) -> bool:
    """Whether the means of `one` and `other` seeds differ significantly: Student's t-test with the pooled spread.
    Without a spread there is no noise that could explain a difference."""
    from scipy.stats import t

    if freedom == 0:
        return difference != 0
    allowed = t.ppf((1 + _CONFIDENCE) / 2, freedom) * spread * math.sqrt(1 / one + 1 / other)
    return abs(difference) > allowed


def _no_worse_and_cheaper(
    trial: TrialRecord, others: Iterable[TrialRecord], values: dict[int, list[float]], costs: Sequence[str],
    spread: float, freedom: int,
) -> str:  # fmt: skip
    """The name of the best trial that costs no more and is not significantly worse; empty where there is none."""

    def mean(one: TrialRecord) -> float:
        return sum(values[one.number]) / len(values[one.number])

    def as_good(one: TrialRecord) -> bool:
        difference = mean(one) - mean(trial)
        seeds = len(values[one.number]), len(values[trial.number])
        return difference <= 0 or not is_beyond_noise(difference, *seeds, spread, freedom)

    cheaper = (
        one
        for one in others
        if one is not trial
        and all(one.costs[name] <= trial.costs[name] for name in costs)
        and (one.costs_of(costs) != trial.costs_of(costs) or mean(one) < mean(trial))
    )
    found = min((one for one in cheaper if as_good(one)), key=mean, default=None)
    return found.name if found else ""
