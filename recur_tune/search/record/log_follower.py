"""A search's state kept up with its log, whoever writes that: no line is read twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from recur_tune.search.record import event_log
from recur_tune.search.record.snapshot import load_snapshot
from recur_tune.search.record.state import Event, in_current_terms


class LogFollower:
    """The state as of the log's end, or as of `until`; later lines are taken in when they are asked for."""

    def __init__(self, events: Path, snapshot: Path, until: int | None = None) -> None:
        self.events = events
        self.state, self.offset = load_snapshot(snapshot, events, until)
        self.catch_up(until)

    def news(self, until: int | None = None) -> Iterator[Event]:
        """What the log has more, one by one, each when the state has it and nothing later."""
        for event, after in event_log.read_from(self.events, self.offset):
            if until is not None and after > until:
                return
            self.offset = after
            self.state.apply(in_current_terms(event))
            yield event

    def catch_up(self, until: int | None = None) -> None:
        """Take in all of it."""
        for _ in self.news(until):
            pass
