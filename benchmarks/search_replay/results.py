"""Replays of all seeds, methods and tasks: a process for each core, and a line in a file for each that is done."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .clock import Finished, replay
from .lcbench import LCBench
from .methods import METHODS
from .recorded import RecordedTable
from .task import Task


@dataclass(frozen=True)
class Place:
    """Where a task comes from: a recorded table, of which it may be the trials of one base, or a folder of LCBench and
    one of its data sets."""

    path: str
    data_set: str = ""
    base: str | None = None

    @property
    def task(self) -> Task:
        return _task(self)


@cache
def _task(place: Place) -> Task:
    if place.data_set:
        return LCBench(Path(place.path), place.data_set)
    return RecordedTable(Path(place.path), place.base)


@dataclass(frozen=True)
class Search:
    """One search to replay; its budget is the tokens of so many full trials, and it may spend so many times that."""

    task: str
    method: str
    workers: int
    seed: int
    trials: int
    longer: float = 1.0


def tokens_of(task: Task, trials: int) -> int:
    """The budget of a search. A trial's last step may go a little beyond its own."""
    return trials * task.longest


def run(search: Search, place: Place) -> dict[str, Any]:
    """A line of the results: the search, its finished trials with the tokens spent by then, their times, and its CPU
    seconds."""
    task, began = place.task, time.process_time()
    method = METHODS[search.method](task, search.seed, search.trials)
    finished = replay(task, method, search.workers, tokens_of(task, search.trials) * search.longer)
    return line_of(search, finished, time.process_time() - began)


def line_of(search: Search, finished: Sequence[Finished], seconds: float) -> dict[str, Any]:
    """As `read` reads it."""
    ends, times = [[one.spent, *one.values] for one in finished], [one.time for one in finished]
    return {**asdict(search), "seconds": round(seconds, 2), "finished": ends, "times": times}


def run_all(
    searches: Sequence[tuple[Search, Place]],
    file: Path,
    processes: int,
    run: Callable[[Search, Place], dict[str, Any]] = run,
) -> dict[Search, list[Finished]]:
    """Replay what the file does not have yet, in the order given; prints its progress. `run` replays one."""
    done = dict(read(file))
    todo = [(search, place) for search, place in searches if search not in done]
    print(f"{len(searches) - len(todo)} replays are in {file}, {len(todo)} to go", flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    # Spawned, because a forked torch may inherit locked thread pools.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool, file.open("a") as lines:
        waiting = {pool.submit(run, search, place): search for search, place in todo}
        for number, future in enumerate(as_completed(waiting), 1):
            search, error = waiting[future], future.exception()
            if error is None:
                lines.write(json.dumps(future.result()) + "\n")
                lines.flush()
            what = f"{search.task}, {search.method}, {search.workers} at a time, seed {search.seed}"
            failed = (
                f" failed, {type(error).__name__}: {error}" if error else ""
            )  # others' packages may, and go without
            print(f"{number}/{len(todo)} {time.monotonic() - began:.0f} s: {what}{failed}", flush=True)
    done = dict(read(file))
    return {search: done[search] for search, _ in searches if search in done}


def read(file: Path) -> Iterator[tuple[Search, list[Finished]]]:
    """The replays in a file; a line that was not written to its end is not one."""
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        search = Search(**{name: row[name] for name in Search.__dataclass_fields__ if name in row})
        times = row.get("times", itertools.repeat(math.nan))  # a file of an earlier version may lack some of this
        ends = zip(row["finished"], times, strict=False)
        yield search, [Finished(spent, tuple(values), at) for (spent, *values), at in ends]  # type: ignore[arg-type]
