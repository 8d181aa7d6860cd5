"""History of a search from its event log: growth of the hypervolume, and which worker trained which trial when.

Times are seconds in which the search ran: a pause between stop and resume is not in the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recur_tune.search.record.front import GrowingFront, reference_point
from recur_tune.search.record.state import Event, SearchState


@dataclass(frozen=True)
class Volume:
    """The front's hypervolume from a moment on."""

    seconds: float
    trial: int | None  # the trial that reached its full budget
    value: float


@dataclass(frozen=True)
class Span:
    """Time that a worker spent on a trial without interruption."""

    trial: int
    worker: str  # host and process; empty where it never reported
    start: float
    end: float
    state: str  # how it ended; `running` if it has not

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end - self.start


def volumes(events: Iterable[Event], objectives: Sequence[str], reference: Mapping[str, float]) -> list[Volume]:
    """The hypervolume after every trial at full budget, against one reference; empty while the reference is not known.

    The last point is the end of the log, so that a flat end is drawn.
    """
    if any(objective not in reference for objective in objectives):
        return []
    found, clock, grown = [Volume(0.0, None, 0.0)], 0.0, GrowingFront(reference_point(reference, objectives))
    for clock, event, state in _timed(events):
        trial = state.trials.get(event.get("trial", -1))  # None for a repetition
        if trial is not None and event.get("state") == "complete":
            found.append(Volume(clock, event["trial"], grown.add(trial.values(objectives))))
    return [*found, Volume(clock, None, found[-1].value)]


def spans(events: Iterable[Event]) -> list[Span]:
    """Every span of a worker on a trial, in the order of their ends."""
    open_: dict[int, Span] = {}
    closed: list[Span] = []
    clock = 0.0

    def close(trial: int, state: str) -> None:
        if span := open_.pop(trial, None):
            closed.append(replace(span, end=clock, state=state))

    for clock, event, _ in _timed(events):
        kind, number = event["kind"], event.get("trial", -1)
        if kind == "search":  # spans that are open when a process starts or ends the search were interrupted
            for trial in list(open_):
                close(trial, "interrupted")
        elif kind in ("running", "moved"):
            close(number, "moved" if kind == "moved" else "interrupted")
            open_[number] = Span(number, "", clock, clock, "running")
        elif kind == "report" and number in open_ and (worker := event.get("worker", "")):
            if open_[number].worker not in ("", worker):
                close(number, "moved")
                open_[number] = Span(number, "", clock, clock, "running")
            open_[number] = replace(open_[number], worker=worker)
        if kind in ("report", "end") and event.get("state"):
            close(number, event["state"])
    for trial in list(open_):
        close(trial, "running")
    return closed


def timeline_rows(stretches: Iterable[Span], most: int) -> dict[str, list[Span]]:
    """Spans by the row of the timeline. A row is one worker's or, where processes end and others begin on the same
    host, shared by those that follow each other: a row each would be empty but for one trial, and not show the load.

    With more than `most` rows, a host has as few as its spans need.
    """
    ordered = sorted(stretches, key=lambda span: (span.start, span.trial))
    workers: dict[Any, list[Span]] = {}
    for span in ordered:
        workers.setdefault(span.worker or span, []).append(span)
    rows = _packed(workers.values())
    return rows if len(rows) <= most else _packed([span] for span in ordered)


def _packed(members: Iterable[list[Span]]) -> dict[str, list[Span]]:
    """Spans that belong together, those after each other on a host in one row; the earliest come first."""
    hosts: dict[str, list[list[Span]]] = {}
    for own in members:
        host = hosts.setdefault(own[0].worker.rpartition(":")[0] or "unknown", [])
        free = next((row for row in host if row[-1].end <= own[0].start), None)
        if free is None:
            host.append(list(own))
        else:
            free += own
    named: dict[str, list[Span]] = {}
    for host_name, host in sorted(hosts.items()):
        for place, row in enumerate(host, start=1):
            workers = {span.worker or host_name for span in row}
            alone = workers.pop() if len(workers) == 1 else ""
            named[alone if alone and alone not in named else f"{host_name} #{place}"] = row
    return dict(sorted(named.items()))


def _timed(events: Iterable[Event]) -> Iterator[tuple[float, Event, SearchState]]:
    """Every event with the search's clock at it and the state after it."""
    state = SearchState()
    for event in events:
        state.apply(event)
        yield state.active_seconds, event, state
