"""Outputs of a search beside its log, as the driver knows them; its caller chooses them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState


class Tracker(Protocol):
    """Delivers the log to an experiment tracker, in the background."""

    def start(self, after: float = 0.0) -> None:
        """Begin after so many seconds."""

    def finish(self, files: list[Path]) -> str:
        """Deliver the rest, and files of the ended search; a sentence about what was not delivered, or nothing."""


class Exporter(Protocol):
    """Shows live metrics."""

    def export(self, state: SearchState) -> None:
        """Show a state; called many times a second."""


@dataclass(frozen=True)
class Outputs:
    """How each output is made. It is pickled for a driver that runs on a cluster elsewhere."""

    tracker: Callable[[SearchDirectory], Tracker]
    exporting: Callable[[SearchDirectory, SearchSpec], AbstractContextManager[Exporter]]
    write_front: Callable[[SearchDirectory, SearchSpec, SearchState], list[Path]]
