"""What has to be true of a search whatever happens to it; a broken invariant is a sentence."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from recur_tune.search.record.front import search_hypervolume
from recur_tune.search.record.state import ENDED, SearchState, TrialRecord, replay
from recur_tune.tracking.mlflow.run_updates import TRIAL_STATUS
from recur_tune.tracking.mlflow.units import metric_name, metric_value
from tests.soak.books import Books

_TOLD = {"complete": "COMPLETE", "pruned": "PRUNED", "infeasible": "PRUNED", "failed": "FAIL"}
_NOISE = 1e-9  # of a number that went through JSON and a database, and of a volume summed in another order


@dataclass
class Witness:
    """Remembers one search from check to check."""

    ended: dict[int, TrialRecord] = field(default_factory=dict)
    hypervolume: float = 0.0

    def check(self, books: Books, settled: bool) -> list[str]:
        """What is broken; of a settled search, nothing may be open anywhere."""
        state = replay(dict(event) for event in books.events)
        return [
            *self._lost(state, books.objectives),
            *_twice(books, state),
            *(f"{trial.name} failed: {trial.reason}" for trial in state.in_state("failed")),
            *_study_differs(books, state, settled),
            *_mlflow_differs(books, state, settled),
            *self._hypervolume_falls(books),
            *(f"{trial.name} is {trial.state} at the end" for trial in _open(state) if settled),
        ]

    def _lost(self, state: SearchState, objectives: tuple[str, ...]) -> Iterator[str]:
        for number, before in self.ended.items():
            now = state.trials.get(number)
            if now is None or now.state != before.state:
                yield f"{before.name} was {before.state} and is {now.state if now else 'gone'}"
            elif now.values(objectives) != before.values(objectives):
                yield f"{before.name} ended at {before.values(objectives)} and now has {now.values(objectives)}"
        self.ended |= {trial.number: trial for trial in state.in_state(*ENDED)}

    def _hypervolume_falls(self, books: Books) -> Iterator[str]:
        """Along the whole log, not only from check to check."""
        state, before = SearchState(), 0.0
        for event in books.events:
            state.apply(dict(event))
            if event.get("state") in ENDED or event["kind"] == "reference":
                now = search_hypervolume(state, books.objectives) or 0.0
                if now < before - _NOISE:
                    yield f"the hypervolume fell from {before:.6g} to {now:.6g} with T{event.get('trial')}"
                before = now
        if before < self.hypervolume - _NOISE:
            yield f"the hypervolume was {self.hypervolume:.6g} and is {before:.6g}"
        self.hypervolume = max(before, self.hypervolume)


def _open(state: SearchState) -> list[TrialRecord]:
    return [trial for trial in state.trials.values() if trial.state not in ENDED]


def _twice(books: Books, state: SearchState) -> Iterator[str]:
    ended: set[int] = set()
    for event in books.events:
        if event["kind"] in ("running", "report", "end"):
            if event["trial"] in ended:
                yield f"T{event['trial']} went on after its end"
            if event.get("state") in ENDED:
                ended.add(event["trial"])
    same = Counter(json.dumps(trial.params, sort_keys=True) for trial in state.trials.values())
    yield from (f"{times} trials are one and the same: {params}" for params, times in same.items() if times > 1)


def _study_differs(books: Books, state: SearchState, settled: bool) -> Iterator[str]:
    """Optuna hears of an end after the log; what was missing is told when the search next begins."""
    due = _ended_before_the_latest_start(books) if not settled else set(state.trials)
    for number in due - set(books.study):
        yield f"Optuna does not know T{number}"
    for number, told in books.study.items():
        record = state.trials.get(number)
        expected = _TOLD.get(record.state, "RUNNING") if record else "RUNNING"
        if told.state != expected and (told.state != "RUNNING" or number in due):
            yield f"Optuna calls T{number} {told.state}, the log {record.state if record else 'nothing'}"
        elif told.state == "COMPLETE" and record and not _agree(told.values, record.values(books.objectives)):
            yield f"Optuna has {told.values} for T{number}, the log {record.values(books.objectives)}"


def _ended_before_the_latest_start(books: Books) -> set[int]:
    ended: set[int] = set()
    due: set[int] = set()
    for event in books.events:
        if event.get("state") in ENDED:
            ended.add(event["trial"])
        elif event["kind"] == "search" and event["status"] == "started":
            due = set(ended)
    return due


def _mlflow_differs(books: Books, state: SearchState, settled: bool) -> Iterator[str]:
    """MLflow may be late while the search runs, but never wrong."""
    runs = Counter(run.trial for run in books.runs)
    yield from (f"MLflow has {times} runs of T{number}" for number, times in runs.items() if times > 1)
    if len(books.searches) > 1:
        yield f"MLflow has {len(books.searches)} runs of the search"
    if settled:
        if books.searches != ["FINISHED"]:
            yield f"MLflow calls the search {books.searches}"
        yield from (f"MLflow has no run of T{number}" for number in set(state.trials) - set(runs))
    for run in books.runs:
        record = state.trials.get(run.trial)
        if record is None:
            yield f"MLflow has a run of T{run.trial}, which the log does not know"
        elif run.status != TRIAL_STATUS.get(record.state) and (settled or run.status in ("FINISHED", "FAILED")):
            yield f"MLflow calls {record.name} {run.status}, the log {record.state}"
        elif settled and record.state == "complete":
            yield from _metrics_differ(record, run.metrics, books.objectives)


def _metrics_differ(record: TrialRecord, metrics: dict[str, float], objectives: tuple[str, ...]) -> Iterator[str]:
    for name in objectives:
        value, there = record.value(name), metrics.get(metric_name(name))
        expected = None if value is None else metric_value(name, value)
        if expected is not None and (there is None or not math.isclose(there, expected, rel_tol=_NOISE)):
            yield f"MLflow has {metric_name(name)} {there} for {record.name}, the log {expected}"


def _agree(some: list[float] | None, others: list[float] | None) -> bool:
    if some is None or others is None:
        return some is others
    return all(math.isclose(a, b, rel_tol=_NOISE) for a, b in zip(some, others, strict=True))
