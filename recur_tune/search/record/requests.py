"""Requests to whoever runs a search: a trial of one's own, one trial less.

They are files in the search directory, as the request to stop is: who asks may sit at another machine. What nobody has
taken yet waits there, also for a search that goes on tomorrow.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recur_tune.common.files import write_text, writing
from recur_tune.search.record.directory import SearchDirectory, SearchLog

REQUESTS = "requests"


def ask_for_trial(directory: SearchDirectory, point: dict[str, Any]) -> None:
    """Ask that this trial, in the sampler's own names, be trained next."""
    _ask(directory, "add", point)


def ask_to_end(directory: SearchDirectory, trial: int) -> None:
    """Ask that a trial end where it is."""
    _ask(directory, "end", trial)


def take_trials(directory: SearchDirectory) -> Iterator[dict[str, Any]]:
    """The trials that were asked for, the earliest first; each is gone once it was given out."""
    return _take(directory, "add")


def take_ends(directory: SearchDirectory) -> Iterator[int]:
    """The trials that shall end, likewise."""
    return _take(directory, "end")


def trials_wait(directory: SearchDirectory) -> bool:
    """Whether somebody asked for a trial that nobody has taken on."""
    return any(_files(directory, "add"))


def end_by_hand(log: SearchLog, number: int) -> None:
    """Write down that a trial ends because somebody says so."""
    tokens = log.state.record(number).tokens
    log.record("end", trial=number, state="pruned", reason=f"ended by hand after {tokens} tokens")


def _ask(directory: SearchDirectory, kind: str, what: Any) -> None:
    folder = directory.path / REQUESTS
    with writing(folder):
        folder.mkdir(exist_ok=True)
    write_text(folder / f"{kind}-{time.time_ns()}-{os.getpid()}.json", json.dumps(what))


def _take(directory: SearchDirectory, kind: str) -> Iterator[Any]:
    for file in _files(directory, kind):
        what = json.loads(file.read_text())
        yield what
        file.unlink()  # after whoever took it has written down that it did


def _files(directory: SearchDirectory, kind: str) -> list[Path]:
    return sorted((directory.path / REQUESTS).glob(f"{kind}-*.json"))
