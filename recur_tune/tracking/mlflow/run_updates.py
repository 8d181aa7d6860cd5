"""Updates for MLflow from events of a search's log, by run, in MLflow's names and units; nothing is called here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recur_tune.search.record.front import front, search_hypervolume
from recur_tune.search.record.state import ENDED, Event, SearchState, TrialRecord
from recur_tune.tracking.mlflow.units import metric_name, metric_value

# A waiting trial has no run yet: a run's start time cannot be changed later.
TRIAL_STATUS = {
    "running": "RUNNING", "paused": "KILLED", "complete": "FINISHED",
    "pruned": "FINISHED", "failed": "FAILED", "infeasible": "KILLED",
}  # fmt: skip
SEARCH_STATUS = {"preparing": "RUNNING", "started": "RUNNING", "paused": "KILLED", "finished": "FINISHED"}


class Point(NamedTuple):
    """One value of a metric, in the order of MLflow's `Metric`."""

    name: str
    value: float
    milliseconds: int
    step: int


@dataclass
class RunUpdate:
    """Metrics and status of one run from some events."""

    points: list[Point] = field(default_factory=list)
    begins: bool = False  # whether the run begins with one of these events
    status: str | None = None  # the latest, if it changed
    changed: float = 0.0  # when it did

    def add(self, values: Mapping[str, Any], event: Event, step: int) -> None:
        """Add values at an event's time in MLflow's units, without those that are not finite."""
        self.points += [
            Point(metric_name(name), metric_value(name, value), milliseconds(event["time"]), step)
            for name, value in values.items()
            if isinstance(value, int | float) and math.isfinite(value)
        ]

    def change(self, status: str | None, event: Event) -> None:
        """Remember a change of status."""
        self.status, self.changed = status, event["time"]


class LogUpdates:
    """Updates of the search's run and its trials' runs from some events."""

    def __init__(self, state: SearchState, objectives: tuple[str, ...]) -> None:
        self.state = state  # before these events; `take` moves it on
        self.objectives = objectives
        self.search = RunUpdate()
        self.trials: dict[int, RunUpdate] = {}

    def take(self, event: Event) -> None:
        """Take one event into account, if its trial is known."""
        known, base_share = self.state.knows(event), self.state.base_share
        self.state.apply(event)
        if not known:
            return
        if event["kind"] == "search":
            if event["status"] == "started" and base_share is not None:  # trials begin once the base is there
                self.search.add({"base_share": 1.0}, event, step=self.state.base_tokens + 1)
            self.search.change(SEARCH_STATUS.get(event["status"]), event)
        elif event["kind"] == "stage":
            self.search.add(
                {"base_share": event.get("share"), "base_loss": event.get("loss")}, event, step=event.get("tokens", 0)
            )
        elif event["kind"] in {"running", "report", "end"}:
            trial = self.state.record(event["trial"])
            self._take_trial(event, trial, self.trials.setdefault(trial.number, RunUpdate()))

    @property
    def front(self) -> list[int]:
        """The numbers of the trials on the front."""
        return [trial.number for trial in front(self.state.trials.values(), self.objectives)]

    def _take_trial(self, event: Event, trial: TrialRecord, update: RunUpdate) -> None:
        if event["kind"] == "report":
            update.add(reported(event), event, step=trial.tokens)
            if "state" not in event:
                return
        begins = event["kind"] != "report" and trial.started in {None, event["time"]}  # or it ended without a start
        if begins:
            update.begins = True
            update.add(trial.costs, event, step=0)
        if not (begins and trial.state == "running"):  # MLflow makes runs that are running
            update.change(TRIAL_STATUS[trial.state], event)
        if trial.state in ENDED and trial.repeats is None:
            self._measure_front(event)

    def _measure_front(self, event: Event) -> None:
        metrics = {"hypervolume": search_hypervolume(self.state, self.objectives), "front_size": len(self.front)}
        self.search.add(metrics, event, step=sum(1 for _ in self.state.in_state(*ENDED)))


def reported(event: Event) -> dict[str, Any]:
    """A report's metrics; `loss` is the validation's, as the objective of that name is."""
    validation = event.get("validation") or {}
    measured = {name: event.get(name) for name in ("tokens_per_second", "measured_peak_memory")}
    scored = {f"{split}_{name}": value for split, metrics in event.get("scores", {}).items()
              for name, value in metrics.items()}  # fmt: skip
    untrained = {f"untrained_{name}": value for name, value in event.get("untrained", {}).items()}
    return {"training_loss": event.get("loss"), **measured, **validation, **untrained, **scored}


def milliseconds(seconds: float) -> int:
    """A time in MLflow's unit."""
    return round(1000 * seconds)
