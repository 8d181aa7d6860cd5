"""Requests to the driver of a search: to train a given trial, or to end one.

They are files in the search directory, since they may come from another machine. They wait there until a driver takes
them, also for a search that is resumed later.
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
ADDED = "added"  # the role of a requested trial, which is trained to its end
MAY_STOP = "added (may stop)"  # that of one which is pruned or paused as any other
_KINDS = {"add": ADDED, "try": MAY_STOP}


def ask_for_trial(directory: SearchDirectory, point: dict[str, Any], may_stop: bool = False) -> None:
    """Request that this point, in the sampler's own names, is trained next; to its end unless it `may_stop` early."""
    _ask(directory, "try" if may_stop else "add", point)


def ask_to_end(directory: SearchDirectory, trial: int) -> None:
    """Request that a trial ends now."""
    _ask(directory, "end", trial)


def take_trials(directory: SearchDirectory) -> Iterator[tuple[dict[str, Any], str]]:
    """The requested trials and their roles; each request is removed after it was acted on."""
    for kind, role in _KINDS.items():
        for point in _take(directory, kind):
            yield point, role


def take_ends(directory: SearchDirectory) -> Iterator[int]:
    """The trials that are requested to end, likewise."""
    return _take(directory, "end")


def trials_wait(directory: SearchDirectory) -> bool:
    """Whether a requested trial waits."""
    return any(_files(directory, kind) for kind in _KINDS)


def end_by_hand(log: SearchLog, number: int) -> None:
    """Log that a trial is ended on request."""
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
        file.unlink()  # after its taker has acted on it


def _files(directory: SearchDirectory, kind: str) -> list[Path]:
    return sorted((directory.path / REQUESTS).glob(f"{kind}-*.json"))
