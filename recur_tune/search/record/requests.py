"""Requests to the driver of a search: to train a given trial, or to end one.

They are files in the search directory, since they may come from another machine. They wait there until a driver takes
them, also for a search that is resumed later.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recur_tune.common.files import write_text, writing
from recur_tune.search.record.directory import SearchDirectory, SearchLog

REQUESTS = "requests"
ADDED = "added"  # the role of a requested trial, which is trained to its end
MAY_STOP = "added (may stop)"  # that of one which is pruned or paused as any other
RIVAL = "plain rival"  # that of a plain trial which the search never tried, and a confirmation trains to its end
_KINDS = {"add": ADDED, "try": MAY_STOP}


def ask_for_trial(directory: SearchDirectory, point: dict[str, Any], may_stop: bool = False) -> None:
    """Request that this point, in the sampler's own names, is trained next; to its end unless it `may_stop` early."""
    _ask(directory, "try" if may_stop else "add", point)


def ask_to_end(directory: SearchDirectory, trial: int) -> None:
    """Request that a trial ends now."""
    _ask(directory, "end", trial)


def take_trials(log: SearchLog) -> Iterator[tuple[dict[str, Any], str]]:
    """The requested trials and their roles; each request is removed after it was acted on. One that cannot be read is
    put aside, with a notice."""
    space = log.directory.spec.parsed_space
    known = {space.label(name, parameter) for name, parameter in space.all_parameters.items()}

    def check(what: Any) -> None:
        if not isinstance(what, dict):
            raise ValueError("it is no JSON object")
        if strange := what.keys() - known:
            raise ValueError(f"the space has no {min(strange)!r}")

    for kind, role in _KINDS.items():
        for point in _take(log, kind, check):
            yield point, role


def take_ends(log: SearchLog) -> Iterator[int]:
    """The trials that are requested to end, likewise."""

    def check(what: Any) -> None:
        if not isinstance(what, int):
            raise ValueError("it is no trial's number")

    return _take(log, "end", check)


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


def _take(log: SearchLog, kind: str, check: Callable[[Any], None]) -> Iterator[Any]:
    for file in _files(log.directory, kind):
        try:
            what = json.loads(file.read_bytes())
            check(what)
        except (ValueError, TypeError) as error:
            aside = file.with_name(f"damaged-{file.name}")
            with writing(file):
                file.rename(aside)
            reason = " ".join(str(error).split())
            log.record("notice", text=f"the request in {file} cannot be read ({reason}); it lies in {aside.name} now.")
            continue
        yield what
        file.unlink()  # after its taker has acted on it


def _files(directory: SearchDirectory, kind: str) -> list[Path]:
    return sorted((directory.path / REQUESTS).glob(f"{kind}-*.json"))
