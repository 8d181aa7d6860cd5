"""Is the next hour told right? Outlooks of replayed searches beside what came.

    python benchmarks/next_hour.py [--table FILE …] [--lcbench DIR] [--seeds 10] [--workers 1 8]

Searches with `known-costs` are replayed as in `search_quality.py`. After 10, 25 and 50 % of the tokens each says
what the next tenth and the next quarter of them add to the hypervolume, as `recur-tune status` does for an hour.
Replays in the results file are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy is imported

import numpy as np
from search_replay.clock import Job, replay
from search_replay.ours import Ours
from search_replay.results import Place, tokens_of
from search_replay.scores import trajectory, volume_at

from recur_tune.search.propose.outlook import Outlook

TABLES = [Path(__file__).parent / f"{name}.csv" for name in ("recorded_trials", "recorded_spread")]
STAGES, AHEAD = (0.1, 0.25, 0.5), (0.1, 0.25)  # shares of the tokens
TRIALS = 60  # whole ones, for which the tokens are enough
_EQUAL = 1e-6  # of the whole box


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--table", type=Path, nargs="*", default=TABLES, help="recorded trials, with their space in a YAML beside")
    add("--lcbench", type=Path, help="folder of LCBench's surrogate")
    add("--data-sets", nargs="+", default=["3945", "7593", "34539"], help="of LCBench, by their numbers at OpenML")
    add("--seeds", type=int, default=10)
    add("--first-seed", type=int, default=0)
    add("--workers", type=int, nargs="+", default=[1, 8], help="trials at a time")
    add("--processes", type=int, default=os.cpu_count())
    add("--results", type=Path, default=Path("build") / "next_hour.jsonl", help="a line for each replay")
    arguments = parser.parse_args()
    places = [Place(str(table)) for table in arguments.table]
    if arguments.lcbench is not None:
        places += [Place(str(arguments.lcbench), data_set) for data_set in arguments.data_sets]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    done = {(row["task"], row["workers"], row["seed"]): row for row in map(json.loads, lines)}
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    todo = [
        (place, workers, seed)
        for seed in seeds for place in places for workers in arguments.workers
        if (place.task.name, workers, seed) not in done
    ]  # fmt: skip
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(outlooks, *one) for one in todo]):
            row = future.result()
            done[row["task"], row["workers"], row["seed"]] = row
            with arguments.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{row['task']}, {row['workers']} at a time, seed {row['seed']}", flush=True)
    for workers in arguments.workers:
        for ahead in AHEAD:
            print(f"\n{workers} at a time, the next {ahead:.0%} of the tokens\n")
            print(table([row for row in done.values() if row["workers"] == workers], ahead))


def outlooks(place: Place, workers: int, seed: int) -> dict[str, Any]:
    """A replay's outlooks, each beside what came."""
    task = place.task
    tokens, ours = tokens_of(task, TRIALS), Ours(task, seed, "known-costs")
    made: list[tuple[float, Outlook, float]] = []

    def watch(spent: float, running: list[tuple[Job, int]]) -> None:
        if len(made) < len(STAGES) and spent >= STAGES[len(made)] * tokens:
            began = time.process_time()
            made.append((spent, ours.outlook(running), time.process_time() - began))

    curve = trajectory(task, replay(task, ours, workers, (max(STAGES) + max(AHEAD) + 0.02) * tokens, watch))
    found = []
    for stage, (spent, outlook, seconds) in zip(STAGES, made, strict=True):
        before = volume_at(curve, spent)
        for ahead in AHEAD:
            row = {"stage": stage, "ahead": ahead, "seconds": seconds, "before": before}
            row["gain"] = volume_at(curve, spent + ahead * tokens) - before
            for name in ("expected", "low", "high"):
                trials, gains = [0, *outlook.trials], [0, *getattr(outlook, name)]
                row[name] = float(np.interp(ahead * TRIALS, trials, gains))
            found.append(row)
    return {"task": task.name, "workers": workers, "seed": seed, "outlooks": found}


def table(rows: Sequence[dict[str, Any]], ahead: float) -> str:
    """By task and stage: how often the interval was right, its median width, and the gains expected and found."""
    lines = ["| task (searches) | after | in the interval | above it | below it | median width | expected | came |"]
    lines.append("|---|" + "---|" * 7)
    for task in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == task]
        for stage in STAGES:
            told = [one for row in of_task for one in row["outlooks"] if (one["stage"], one["ahead"]) == (stage, ahead)]
            above = np.mean([one["gain"] > one["high"] + _EQUAL for one in told])
            below = np.mean([one["gain"] < one["low"] - _EQUAL for one in told])
            width = np.median([one["high"] - one["low"] for one in told])
            expected, came = (np.mean([one[name] for one in told]) for name in ("expected", "gain"))
            lines.append(
                f"| {task} ({len(of_task)}) | {stage:.0%} | {1 - above - below:.0%} | {above:.0%} | {below:.0%} "
                f"| {width:.4f} | {expected:.4f} | {came:.4f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
