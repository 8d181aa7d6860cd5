"""Cost of writing and reading the log of a long search: per report, and per command.

    python benchmarks/log_scale.py [--trials 5000] [--reports 120]

The reports are synthetic. They go through the scheduler and into the log as Ray Tune's do, eight trials at a time. Then
the commands read the log, each in its own process, with the writer's snapshot and without it. Times are wall-clock
seconds and, in brackets, CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recur_tune.cli.live_view import LiveView
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.shipped import find_space
from recur_tune.search.propose.rungs import Rungs
from recur_tune.search.record.directory import EVENTS, SNAPSHOT, SearchDirectory, SearchLog
from recur_tune.search.record.spec import SearchSpec, with_overrides
from recur_tune.search.run.scheduler import ParetoPruning

_AT_ONCE = 8
_SHARES = 5  # parts of the search
_DRAW = random.Random(0)


def write(log: SearchLog, spec: SearchSpec, trials: int, reports: int) -> list[tuple[float, float]]:
    """Let synthetic trials report to the scheduler. For each fifth of the search: seconds of a report, and of one
    with a validation. No trial is pruned, so that all of them report."""
    scheduler = ParetoPruning(spec, log)
    plain: list[list[float]] = [[] for _ in range(_SHARES)]
    validated: list[list[float]] = [[] for _ in range(_SHARES)]
    every = reports // len(spec.budget.rung_tokens)
    for first in range(0, trials, _AT_ONCE):
        running = [_begin(log, spec, number) for number in range(first, min(trials, first + _AT_ONCE))]
        share = first * _SHARES // trials
        for number in range(1, reports + 1):
            for trial in running:
                message = {"report": json.dumps(_message(spec, trial, number, reports, every))}
                begun = time.process_time()
                scheduler.on_trial_result(None, trial, message)
                (validated if number % every == 0 else plain)[share].append(time.process_time() - begun)
    return [(sum(a) / len(a), sum(b) / len(b)) for a, b in zip(plain, validated, strict=True)]


def _begin(log: SearchLog, spec: SearchSpec, number: int) -> Any:
    costs = {"flops_per_token": _DRAW.uniform(1e5, 1e6), "peak_memory": _DRAW.uniform(1e7, 1e8), "parameters": 175e3}
    params = {"recurrence": "none", "window": 32, "overlap": 0, "learning_rate": _DRAW.uniform(1e-4, 1e-2)}
    log.record("trial", trial=number, params=params, costs=costs, role="" if number else "baseline")
    log.record("running", trial=number)
    return SimpleNamespace(config={"number": number}, max_failures=3, quality=_DRAW.uniform(5.0, 20.0))


def _message(spec: SearchSpec, trial: Any, number: int, reports: int, every: int) -> dict[str, Any]:
    loss = trial.quality + 10 / number
    names = ("loss", "perplexity", "token_perplexity", "bits_per_byte")
    metrics = {name: loss + place for place, name in enumerate(names)} if number % every == 0 else None
    return {
        "tokens": spec.budget.tokens * number // reports, "loss": loss, "tokens_per_second": 34_567,
        "validation": metrics, "measured_peak_memory": 31_234_567, "device_flops": 1.2e11,
        "worker": f"node-{trial.config['number'] % 4}.cluster.example:12345", "training_seconds": number * 1.2345,
    } | ({"state": "complete", "scores": {}} if number == reports else {})  # fmt: skip


def decision(trials: int) -> float:
    """Seconds to decide whether a trial continues at a rung that so many have reached."""
    rungs = Rungs([1000, 2000], 3.0, [False, True, True])
    rungs.tables[1000] = {number: [_DRAW.random() for _ in range(3)] for number in range(trials)}
    begun = time.process_time()
    for number in range(trials, trials + 10):
        rungs.reach(number, 1000, [_DRAW.random() for _ in range(3)])
    return (time.process_time() - begun) / 10


def command(*words: str) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a command."""
    begun, used = time.perf_counter(), os.times()
    line = [sys.executable, "-m", "recur_tune.cli.main", *words]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    core = after.children_user - used.children_user + after.children_system - used.children_system
    return time.perf_counter() - begun, core


def main() -> None:
    """Write, read, and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--reports", type=int, default=120, help="of each trial")
    arguments = parser.parse_args()
    space = with_overrides(read_yaml(find_space("quickstart")), [("budget.trials", arguments.trials)])
    spec = parse(SearchSpec, with_overrides(space, [("budget.reduction", 1.0001), ("budget.rungs", 4)]))
    with tempfile.TemporaryDirectory(prefix="recur-tune-log-") as folder:
        directory = SearchDirectory.create(Path(folder), "long", spec)
        log = directory.open_log()
        log.record("search", status="started")
        log.record("reference", values=dict.fromkeys(spec.objectives, 1000000000.0))
        shares = write(log, spec, arguments.trials, arguments.reports)
        size, kept = ((directory.path / name).stat().st_size / 1e6 for name in (EVENTS, SNAPSHOT))
        print(f"{arguments.trials} trials, {arguments.reports} reports each: a log of {size:.0f} MB, ", end="")
        print(f"a snapshot of {kept:.0f} MB\n")
        print("| share of the search | a report, µs | with a validation, µs |\n|---|---|---|")
        for place, (report, other) in enumerate(shares, start=1):
            print(f"| {(place - 1) / _SHARES:.0%} to {place / _SHARES:.0%} | {1e6 * report:.0f} | {1e6 * other:.0f} |")
        print(f"\na decision at a rung that all have reached: {1e3 * decision(arguments.trials):.1f} ms")
        _print_readers(directory)


def _print_readers(directory: SearchDirectory) -> None:
    where, name = ["--results", str(directory.path.parent)], directory.name
    commands = {"status": ["status"], f"status {name}": ["status", name], f"front {name}": ["front", name]}
    with_snapshot = {title: command(*words, *where) for title, words in commands.items()}
    watch = LiveView(directory)
    begun = time.process_time()
    for _ in range(100):
        watch.catch_up()
    idle = (time.process_time() - begun) / 100
    (directory.path / SNAPSHOT).unlink()
    print("\n| | s | without the snapshot |\n|---|---|---|")
    for title, words in commands.items():
        (clock, core), (clock_alone, core_alone) = with_snapshot[title], command(*words, *where)
        print(f"| `{title}` | {clock:.1f} ({core:.1f}) | {clock_alone:.1f} ({core_alone:.1f}) |")
    print(f"\na live table that finds no new event: {1e6 * idle:.0f} µs")


if __name__ == "__main__":
    main()
