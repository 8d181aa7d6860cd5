"""The state of a search: its trials, their progress and how they ended, reduced from the events of its log.

The live table, `status`, the front, the tracker and a resume all use this one reducer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from recur_tune.common.deprecated import with_current_names
from recur_tune.config.trial import RENAMED
from recur_tune.recurrences.registry import canonical
from recur_tune.search.record.objectives import COSTS, Objective

TrialState = Literal["waiting", "running", "paused", "complete", "pruned", "failed", "infeasible"]
ENDED: frozenset[TrialState] = frozenset({"complete", "pruned", "failed", "infeasible"})

# Causes of a pause, as the log has them.
STORAGE = "storage"  # a disk did not take a trial's files, say
PAUSED_AT_RUNG = "frozen"  # a new trial is expected to gain more per token; the word is that of freeze-thaw papers
CROWDED = "crowded"  # a trial needed more of a shared GPU than its predicted memory

Event = dict[str, Any]

_OLD_ROLE = re.compile("^given(?= [0-9])")  # of the trials under `first`, up to version 0.2
_ABOUT_A_TRIAL = frozenset({"trial", "running", "moved", "thaw", "report", "scores", "end"})


@dataclass
class Validation:
    """A validation: metrics after so many tokens."""

    tokens: int
    metrics: dict[str, float]


@dataclass
class TrialRecord:
    """A trial as the log has it."""

    number: int
    params: dict[str, Any]  # the fields that the search chose
    costs: dict[str, float]  # by the names of the cost objectives
    role: str = ""  # such as "baseline" and "paper", the first trials of a search
    repeats: int | None = None  # the trial that it repeats with another seed
    seed: int | None = None  # where it differs from the search's own
    split: str = ""  # of the corpus, on which its model is scored at the end
    gain: float | None = None  # expected hypervolume gain when it was chosen
    workers: int = 1  # that train it together
    state: TrialState = "waiting"
    reason: str = ""  # why it failed, was pruned or paused, or is infeasible
    cause: str = ""  # the reason in a word; none where it was pruned
    tokens: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    measured_peak_memory: int | None = None
    device_flops: float | None = None  # peak FLOPs per second of its device
    worker: str = ""  # host and process id of its trainer
    untrained: dict[str, float] = field(default_factory=dict)  # metrics before the first step
    validations: list[Validation] = field(default_factory=list)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # metrics on whole splits, by split
    started: float | None = None  # of its first start, in seconds since the epoch
    ended: float | None = None

    @property
    def name(self) -> str:
        """Its name, such as `T7`."""
        return f"T{self.number}"

    @property
    def paused_at_rung(self) -> bool:
        """Whether it was paused at a rung; it is resumed when nothing else gains more per token."""
        return self.state == "paused" and self.cause == PAUSED_AT_RUNG

    @property
    def metrics(self) -> dict[str, float]:
        """The latest validation's metrics; empty before the first."""
        return self.validations[-1].metrics if self.validations else {}

    def value(self, objective: str) -> float | None:
        """The latest value of an objective; None before the first validation."""
        return (self.costs if objective in COSTS else self.metrics).get(objective)

    def costs_of(self, names: Iterable[str]) -> list[float]:
        """Some of its costs, in that order."""
        return [self.costs[name] for name in names]

    def values_at(self, validation: Validation, objectives: Iterable[str]) -> list[float]:
        """The objectives at one of its validations; costs do not change."""
        return [self.costs[name] if name in COSTS else validation.metrics[name] for name in objectives]

    def values(self, objectives: Iterable[str]) -> list[float] | None:
        """The latest values of objectives; None while one is missing."""
        found = [self.value(objective) for objective in objectives]
        return None if any(value is None for value in found) else found  # type: ignore[return-value]


@dataclass
class SearchState:
    """Every trial of a search, built by applying its events in order."""

    trials: dict[int, TrialRecord] = field(default_factory=dict)
    repeats: dict[int, TrialRecord] = field(default_factory=dict)  # of those trials, with other seeds
    reference: dict[str, float] = field(default_factory=dict)  # by objective, the reference point of the hypervolume
    status: str = "new"  # then preparing, started, and at last paused or finished
    started: float | None = None  # when trials first began
    updated: float | None = None
    active_seconds: float = 0.0  # of running trials, over all runs: the duration of a search wherever it is shown
    confirmation_seconds: float = 0.0  # of repeating the front with other seeds
    confirming: bool = False  # whether the last run repeats the front
    preparation_seconds: float = 0.0  # of pretraining a base, tokenising, starting Ray
    exhausted: bool = False  # no new trial is found, or none with enough expected gain
    stage: str = ""  # what is being prepared
    base_share: float | None = None  # of its tokens, while a base is pretrained
    base_loss: float | None = None
    base_tokens: int = 0  # that it was trained on so far
    fault: str = ""  # of storage, for which the latest run pauses
    notices: list[str] = field(default_factory=list)  # for people who watch
    links: dict[str, str] = field(default_factory=dict)  # dashboard, MLflow
    damaged: list[tuple[int, str]] = field(default_factory=list)  # lines of the log: their offsets, and why
    outlook: dict[str, list[float]] = field(default_factory=dict)  # the latest, by the names of its fields
    unknown: list[int] = field(default_factory=list)  # trials whose first line the log has lost

    def apply(self, event: Event) -> None:
        """Apply one event. Kinds that a later version added are ignored, and so is what happened to a trial whose first
        line is lost."""
        if not self.knows(event):
            self.unknown += [] if event["trial"] in self.unknown else [event["trial"]]
            return
        passed = event["time"] - (event["time"] if self.updated is None else self.updated)
        begins = event["kind"] == "search" and event["status"] in ("preparing", "started")
        if self.status == "preparing" and not (begins and event["status"] == "preparing"):
            self.preparation_seconds += passed
        elif not begins and self.confirming:
            self.confirmation_seconds += passed
        elif not begins:  # between two runs no time is counted
            self.active_seconds += passed
        self.updated = event["time"]
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler is not None:
            handler(event)

    def knows(self, event: Event) -> bool:
        """Whether the trial of an event is known, if it is about one; a damaged log may have lost its first line."""
        if event["kind"] not in _ABOUT_A_TRIAL:
            return True
        if event["kind"] == "trial":
            return event.get("repeats") is None or event["repeats"] in self.trials
        return event["trial"] in self.trials or event["trial"] in self.repeats

    def record(self, number: int) -> TrialRecord:
        """The trial or repeat with that number."""
        return self.trials[number] if number in self.trials else self.repeats[number]

    def repeats_of(self, trial: TrialRecord) -> list[TrialRecord]:
        """A trial's repeats with other seeds, in any state."""
        return [one for one in self.repeats.values() if one.repeats == trial.number]

    def elapsed(self, now: float) -> float:
        """The duration of the search until now."""
        searching = self.status == "started" and not self.confirming
        return self.active_seconds + (max(0.0, now - (self.updated or now)) if searching else 0.0)

    def prepared(self, now: float) -> float:
        """Seconds of preparation until now."""
        preparing = self.status == "preparing"
        return self.preparation_seconds + (max(0.0, now - (self.updated or now)) if preparing else 0.0)

    def in_state(self, *states: TrialState) -> Iterator[TrialRecord]:
        """The trials in one of the given states, in the order of their numbers."""
        return (trial for trial in self.trials.values() if trial.state in states)

    @property
    def trained(self) -> int:
        """Trials that count against a budget of trials: all but the infeasible."""
        return sum(trial.state != "infeasible" for trial in self.trials.values())

    def _on_search(self, event: Event) -> None:
        self.status = event["status"]
        self.stage, self.base_share, self.base_loss = "", None, None
        if self.status in ("preparing", "started"):
            self.fault = ""
        self.confirming = event.get("confirming", self.confirming and self.status != "preparing")
        if self.status == "started" and not self.confirming:
            self.exhausted = False  # the sampler tries again
        if self.started is None and self.status == "started":
            self.started = event["time"]
        self.links |= event.get("links", {})

    def _on_stage(self, event: Event) -> None:
        self.stage = event["text"]
        self.base_share, self.base_loss = event.get("share"), event.get("loss")
        self.base_tokens = event.get("tokens", self.base_tokens)

    def _on_notice(self, event: Event) -> None:
        self.notices.append(event["text"])
        self.exhausted |= event.get("exhausted", False)

    def _on_reference(self, event: Event) -> None:
        self.reference |= event["values"]

    def _on_outlook(self, event: Event) -> None:
        self.outlook = {name: event[name] for name in ("trials", "expected", "low", "high")}

    def _on_trial(self, event: Event) -> None:
        number, repeats = event["trial"], event.get("repeats")
        told = {name: event[name] for name in ("role", "repeats", "seed", "split", "gain") if name in event}
        if "role" in told:
            told["role"] = _OLD_ROLE.sub("first", told["role"])
        made = TrialRecord(number, event["params"], event["costs"], **told)
        self.unknown = [one for one in self.unknown if one != number]
        (self.trials if repeats is None else self.repeats)[number] = made

    def _on_workers(self, event: Event) -> None:
        self.record(event["trial"]).workers = event["workers"]

    def _on_running(self, event: Event) -> None:
        trial = self.record(event["trial"])
        trial.state, trial.reason, trial.ended = "running", "", None  # it may have been paused or failed before
        trial.started = trial.started or event["time"]

    def _on_moved(self, event: Event) -> None:
        self.record(event["trial"]).worker = ""  # until it reports from elsewhere

    def _on_report(self, event: Event) -> None:
        trial = self.record(event["trial"])
        trial.tokens, trial.loss = event.get("tokens", trial.tokens), event.get("loss", trial.loss)
        trial.tokens_per_second = event.get("tokens_per_second")
        trial.worker = event.get("worker", trial.worker)
        trial.device_flops = event.get("device_flops", trial.device_flops)
        trial.measured_peak_memory = event.get("measured_peak_memory") or trial.measured_peak_memory
        trial.untrained = event.get("untrained") or trial.untrained
        if event.get("validation"):
            # A trial that continued from a checkpoint repeats some validations.
            trial.validations = [v for v in trial.validations if v.tokens < event["tokens"]]
            trial.validations.append(Validation(event["tokens"], event["validation"]))
        trial.scores |= event.get("scores", {})
        if event.get("state"):  # the last report and the end are one line, so that a crash cannot separate them
            self._on_end(event)

    def _on_scores(self, event: Event) -> None:
        self.record(event["trial"]).scores |= event["scores"]

    def _on_end(self, event: Event) -> None:
        trial = self.record(event["trial"])
        trial.state, trial.reason = event["state"], event.get("reason", "")
        trial.cause = event.get("cause", "")
        if trial.cause == STORAGE:
            self.fault = trial.reason
        trial.ended = event["time"] if trial.state in ENDED else None


def in_current_terms(event: Event) -> Event:
    """An event in the current terms. Earlier versions wrote `stopped` for a pruned trial and for a paused search, and
    had other names of fields and recurrences."""
    if event.get("status") == "stopped":
        event["status"] = "paused"
    elif event.get("state") == "stopped":
        event["state"] = "pruned"
    if (validation := event.get("validation")) and "word_perplexity" in validation:
        validation["perplexity"] = validation.pop("word_perplexity")
    if params := event.get("params"):
        event["params"] = with_current_names(params, RENAMED)
        if "recurrence" in params:
            event["params"]["recurrence"] = canonical(params["recurrence"])
    return event


def replay(events: Iterable[Event]) -> SearchState:
    """The state that a log leads to."""
    state = SearchState()
    for event in events:
        state.apply(event)
    return state


def values_of(trials: Iterable[TrialRecord], objective: Objective) -> list[float]:
    """An objective of some trials; NaN where a trial has none."""
    found = (trial.value(objective.name) for trial in trials)
    return [math.nan if value is None else float(value) for value in found]
