"""Recovery of a damaged or shortened log from other books: the trials' folders, Optuna's study and MLflow.

A book is what its source knows of each trial, as events of the log. Events that the log lacks are given back; whole
lines of the log are never changed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recur_tune.common.errors import StorageFault
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.event_log import append, read_from
from recur_tune.search.record.state import ENDED, Event, SearchState, TrialRecord, in_current_terms

REPORTS = "reports.jsonl"  # in a trial's folder: its first line in the log, and its validations
_OF_AN_END = ("state", "reason", "cause")
Costs = Callable[[Event], dict[str, float]]  # of a trial's first event


@dataclass(frozen=True)
class Book:
    """What one source knows of trials, by their numbers; events of a trial in the log's order."""

    source: str
    trials: Mapping[int, Sequence[Event]] = field(default_factory=dict)


@dataclass(frozen=True)
class GivenBack:
    """An event that the log lacks, and the source that has it."""

    event: Event
    source: str

    def __str__(self) -> str:
        trial, kind = f"T{self.event['trial']}", self.event["kind"]
        what = {"trial": "first line", "running": "start", "report": f"report at {self.event.get('tokens')} tokens"}
        ended = f"end, {self.event.get('state')}" if self.event.get("state") in ENDED else ""
        return f"{trial}'s {ended or what.get(kind, kind)}, from {self.source}"


def folders(directory: SearchDirectory) -> dict[int, Path]:
    """The trials' folders that have anything in them, by the trials' numbers."""
    found = (path for path in (directory.path / "trials").glob("[0-9]*") if path.name.isdigit() and path.is_dir())
    return {int(path.name): path for path in found if any(path.iterdir())}


def folder_book(directory: SearchDirectory) -> Book:
    """What the trials' folders know: settings, costs and validations; of ends only complete ones, since another end may
    have been followed by another try."""
    trials = {}
    for number, folder in folders(directory).items():
        file = folder / REPORTS
        if file.is_file():
            events = [in_current_terms(event) for event, _ in read_from(file, 0) if event.get("trial") == number]
            trials[number] = [kept for event in events if (kept := _without_other_end(event))]
    return Book("its folder", trials)


def _without_other_end(event: Event) -> Event | None:
    if event.get("state", "complete") == "complete":
        return event
    kept = _without_end(GivenBack(event, ""))
    return kept.event if kept else None


def note_trial(folder: Path, record: TrialRecord) -> None:
    """Begin a trial's own book in its folder, unless it is begun."""
    if (folder / REPORTS).exists():
        return
    event = {"time": round(time.time(), 3), "kind": "trial", "trial": record.number}
    fields = ("params", "costs", "role", "repeats", "seed", "split", "gain")
    _note(folder, event | {name: value for name in fields if (value := getattr(record, name)) not in (None, "")})


def note_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Add a report with a validation or an end to a trial's own book."""
    if report.get("validation") or report.get("state"):
        _note(folder, {"time": round(time.time(), 3), "kind": "report", "trial": int(folder.name), **report})


def _note(folder: Path, event: Event) -> None:
    with suppress(StorageFault):  # it only serves to mend a damaged log
        append(folder / REPORTS, event)


def given_back(state: SearchState, books: Sequence[Book], costs: Costs, ends_alone: bool = False) -> list[GivenBack]:
    """The events that the log lacks, in the order of the trials; earlier books are believed before later ones.

    Args:
        ends_alone: Only trials that the log does not know, and ends of those that it does.
    """
    found: list[GivenBack] = []
    for number in sorted({number for book in books for number in book.trials}):
        known = state.trials.get(number) or state.repeats.get(number)
        found += _of_trial(known, _merged(number, books), costs, ends_alone)
    return found


def _of_trial(
    known: TrialRecord | None, merged: Sequence[GivenBack], costs: Costs, ends_alone: bool
) -> Iterator[GivenBack]:
    if known is None and not any(one.event["kind"] == "trial" for one in merged):
        return  # nobody knows its settings
    ends_now = any(one.event.get("state") in ENDED for one in merged) and (known is None or known.state not in ENDED)
    there = {validation.tokens for validation in known.validations} if known else set()
    for one in merged:
        event, ends = one.event, one.event.get("state") in ENDED
        lacks = {
            "trial": known is None,
            "running": known is None or (known.started is None and not ends_alone),
            "report": ends_now or known is None or not ends_alone,
        }.get(event["kind"], False)
        if event["kind"] == "report" and event.get("tokens") in there:
            lacks = False
        if ends:
            lacks = known is None or known.state not in ENDED
        if lacks:
            whole = event | {"costs": costs(event)} if event["kind"] == "trial" else event
            yield GivenBack(whole, one.source)


def _merged(number: int, books: Sequence[Book]) -> list[GivenBack]:
    """All that the books know of a trial, once: metrics of a validation are put together, the first book's win."""
    firsts: dict[Any, GivenBack] = {}
    for book in books:
        for event in book.trials.get(number, ()):
            key = _key(event)
            before = firsts.get(key)
            if before is None:
                firsts[key] = GivenBack(event, book.source)
            elif event["kind"] == "report" and before.source != book.source:
                metrics = (event.get("validation") or {}) | (before.event.get("validation") or {})
                firsts[key] = GivenBack(event | before.event | {"validation": metrics}, before.source)
            elif event["kind"] == "report":
                firsts[key] = GivenBack(event, book.source)  # it was trained from there a second time
    ends = [one for one in firsts.values() if one.event.get("state") in ENDED]
    # A worker that has not heard yet that its trial was pruned may complete it.
    end = next((one for one in ends if one.event["state"] != "complete"), next(iter(ends), None))
    kept = [one if one is end or one not in ends else _without_end(one) for one in firsts.values()]
    return sorted(filter(None, kept), key=lambda one: _key(one.event))


def _without_end(one: GivenBack) -> GivenBack | None:
    if not one.event.get("validation"):
        return None
    return GivenBack({name: value for name, value in one.event.items() if name not in _OF_AN_END}, one.source)


def _key(event: Event) -> tuple[int, int]:
    """The place of an event in the life of its trial."""
    if event["kind"] == "report":
        return 2, event.get("tokens", 0)
    return {"trial": 0, "running": 1}.get(event["kind"], 3), 0


def with_events(events: Sequence[Event], given: Sequence[GivenBack]) -> list[Event]:
    """The log with further events, each before what followed it in its trial's life, and as late as its time allows.
    Times never fall because of it: the search's own time is counted from one line to the next."""
    merged = list(events)
    for one in given:
        place = _place(merged, one.event)
        after = merged[place]["time"] if place < len(merged) else one.event["time"]
        before = merged[place - 1]["time"] if place else after
        merged.insert(place, one.event | {"time": max(before, min(one.event["time"], after))})
    return merged


def _place(events: Sequence[Event], event: Event) -> int:
    own = [place for place, other in enumerate(events) if event["trial"] in (other.get("trial"), other.get("repeats"))]
    for place in own:
        later = events[place].get("trial") != event["trial"] or _key(events[place]) > _key(event)
        if later and (event["kind"] in ("trial", "running") or events[place]["kind"] == "report"):
            return place
    place = own[-1] + 1 if own else 0
    while place < len(events) and events[place]["time"] <= event["time"]:
        place += 1
    return place


_WORDS = re.compile(rb'"kind": *"(\w+)"(?:.*?"trial": *(\d+))?')


def about(text: bytes) -> tuple[str, int | None]:
    """The kind and the trial that a damaged line seems to be about; empty and None where that cannot be read."""
    found = _WORDS.search(text)
    if found is None:
        return "", None
    return found[1].decode(), int(found[2]) if found[2] else None
