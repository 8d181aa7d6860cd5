"""The state of a search, followed in its log: a snapshot first, then the lines after it, each of them once.

A snapshot only saves time. One that is missing, damaged, of another version or of another log is not used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_text
from recur_tune.search.record import event_log
from recur_tune.search.record.event_log import DamagedLine
from recur_tune.search.record.state import Event, SearchState, TrialRecord, Validation, in_current_terms

_READER = 1  # counts up when the same log leads to another state
_FINGERPRINT_BYTES = 256  # of the log before the snapshot's offset, by which the log is recognised


class LogFollower:
    """The state at the log's end, or at the offset `until`; later lines are applied when they are asked for."""

    def __init__(self, events: Path, snapshot: Path | None, until: int | None = None) -> None:
        self.events = events
        self.state, self.offset = load_snapshot(snapshot, events, until) if snapshot else (SearchState(), 0)
        self.catch_up(until)

    def news(self, until: int | None = None) -> Iterator[Event]:
        """The log's further events, each once the state has it and nothing later."""
        for event, after in event_log.read_from(self.events, self.offset, self._note):
            if until is not None and after > until:
                return
            self.offset = after
            known = self.state.knows(event)
            self.state.apply(in_current_terms(event))
            if known:
                yield event

    def _note(self, line: DamagedLine) -> None:
        """Remember a damaged line, once: at the log's end it is met again and again."""
        if not any(offset == line.offset for offset, _ in self.state.damaged):
            self.state.damaged.append((line.offset, line.why))

    def catch_up(self, until: int | None = None) -> None:
        """Apply all of them."""
        for _ in self.news(until):
            pass


def whole_log(events: Path) -> tuple[list[Event], SearchState]:
    """Every event that can be applied, and the state that they lead to; no snapshot is used."""
    follower = LogFollower(events, None, until=0)
    return list(follower.news()), follower.state


def save_snapshot(file: Path, log: Path, state: SearchState, offset: int) -> None:
    """Save the state that the log's first `offset` bytes lead to."""
    content = {"reader": _reader(), "offset": offset, "before": fingerprint(log, offset), "state": _plain(state)}
    write_text(file, json.dumps(content, separators=(",", ":")))


def load_snapshot(file: Path, log: Path, until: int | None = None) -> tuple[SearchState, int]:
    """The saved state and its offset in the log; the empty state and 0 where no snapshot up to `until` can be used."""
    try:
        content = json.loads(file.read_bytes())
        offset = content["offset"]
        known = content["reader"] == _reader() and content["before"] == fingerprint(log, offset)
        if known and (until is None or offset <= until):
            return _state(content["state"]), offset
    except (OSError, ValueError, KeyError, TypeError, UserError):
        pass
    return SearchState(), 0


def fingerprint(log: Path, offset: int) -> str:
    """A digest of the bytes before an offset."""
    with log.open("rb") as lines:
        lines.seek(max(0, offset - _FINGERPRINT_BYTES))
        return hashlib.sha256(lines.read(min(offset, _FINGERPRINT_BYTES))).hexdigest()


def _reader() -> list[Any]:
    """The versions that can read a snapshot: those with the same fields."""
    return [_READER, *(field.name for kind in (SearchState, TrialRecord, Validation) for field in fields(kind))]


def _plain(state: SearchState) -> dict[str, Any]:
    return vars(state) | {"trials": _records(state.trials.values()), "repeats": _records(state.repeats.values())}


def _records(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    return [vars(one) | {"validations": [[v.tokens, v.metrics] for v in one.validations]} for one in trials]


def _state(plain: dict[str, Any]) -> SearchState:
    trials, repeats = _by_number(plain["trials"]), _by_number(plain["repeats"])
    damaged = [(offset, why) for offset, why in plain["damaged"]]
    return SearchState(**plain | {"trials": trials, "repeats": repeats, "damaged": damaged})


def _by_number(records: Iterable[dict[str, Any]]) -> dict[int, TrialRecord]:
    trials = (
        TrialRecord(**one | {"validations": [Validation(tokens, metrics) for tokens, metrics in one["validations"]]})
        for one in records
    )
    return {trial.number: trial for trial in trials}
