"""Replays of searches that learn from earlier ones. Those are replays too, whose folders are kept."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from math import exp, fsum, log
from pathlib import Path
from typing import Any

import numpy as np

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.state import Event
from recur_tune.search.record.warm_start import warm_start_from

from .clock import replay
from .ours import Ours
from .results import Place, Search, line_of, tokens_of
from .task import Task

ALONE, AFTER = "ours, alone", "ours, after others"
SHUFFLED, MIRRORED = "ours, after shuffled ones", "ours, after mirrored ones"
KINDS = (ALONE, AFTER, SHUFFLED, MIRRORED)
_SAMPLER = "known-costs"
EARLIER_SEED, EARLIER_TRIALS = 1000, 60


def earlier_search(task: Task, folder: Path) -> SearchDirectory:
    """The folder of a whole search of a task; it is replayed where it is not there yet."""
    path = kept_folder(task, folder)
    if not path.exists():
        method = Ours(task, EARLIER_SEED, _SAMPLER)
        replay(task, method, 1, tokens_of(task, EARLIER_TRIALS))
        copy = path.with_name(f".{path.name}-{os.getpid()}")
        shutil.copytree(method.log.directory.path, copy)
        copy.rename(path)
    return SearchDirectory(path)


def kept_folder(task: Task, folder: Path) -> Path:
    """Where it is kept."""
    return folder / task.name.replace(" ", "-").replace(",", "")


def spoiled(earlier: SearchDirectory, folder: Path, kind: str, seed: int) -> SearchDirectory:
    """A copy of a search that misleads. Shuffled: each trial has the validations of another. Mirrored: log qualities
    are mirrored at their mean, so that what was best is worst."""
    events = [event for event, _ in earlier.events()]
    quality = earlier.spec.objectives[0]
    begun = [event for event in events if event["kind"] == "trial"]
    numbers = [event["trial"] for event in begun]
    now = dict(zip(numbers, np.random.default_rng(seed).permutation(numbers).tolist(), strict=True))
    logs = [log(event["validation"][quality]) for event in events if event["kind"] == "report"]
    middle = fsum(logs) / len(logs)

    def changed(event: Event) -> Event:
        if kind == SHUFFLED and "trial" in event:
            return {**event, "trial": now[event["trial"]]}
        if kind == MIRRORED and event["kind"] == "report":
            return {**event, "validation": {quality: exp(2 * middle - log(event["validation"][quality]))}}
        return event

    copy = SearchDirectory.create(folder, earlier.name, earlier.spec)
    for event in [*begun, *(changed(event) for event in events if event["kind"] != "trial")]:
        copy.record(event["kind"], **{name: value for name, value in event.items() if name not in ("kind", "time")})
    return copy


def run_after(others: Sequence[Place], folder: Path, search: Search, place: Place) -> dict[str, Any]:
    """A line of the results, as `results.run` gives it, of a search that knows of others."""
    task, began = place.task, time.process_time()
    known = [earlier_search(one.task, folder) for one in others]
    with tempfile.TemporaryDirectory() as copies:
        if search.method in (SHUFFLED, MIRRORED):
            known = [spoiled(one, Path(copies), search.method, search.seed) for one in known]
        learn = None if search.method == ALONE else partial(warm_start_from, known)
        method = Ours(task, search.seed, _SAMPLER, learn=learn)
    finished = replay(task, method, search.workers, tokens_of(task, search.trials))
    return line_of(search, finished, time.process_time() - began)
