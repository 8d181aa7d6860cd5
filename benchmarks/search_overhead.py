"""What a search costs beyond training, in seconds per trial.

    python benchmarks/search_overhead.py [--trials 6]

The first table: quickstart trials, one at a time, with one worker and with two; the time from the end of one trial to
the end of the next, without its training and validations. The second: searches of trials that train nothing, which show
whether the driver slows down with their number.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune

import recur_tune
from recur_tune.cluster.capacity import TrialResources
from recur_tune.cluster.connection import connected
from recur_tune.cluster.liveness import ClusterWatchdog
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.shipped import find_space
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec, with_overrides
from recur_tune.search.run.callback import DriverCallback
from recur_tune.search.run.driver import fit
from recur_tune.search.run.searcher import OptunaSearcher
from recur_tune.tracking.prometheus.exporter import exporting


def nothing(config: dict[str, Any]) -> None:
    tune.report({"value": config["number"]})


def bare_tune(trials: int) -> tuple[float, float]:
    """A function that does nothing, under Ray Tune alone with actors used again."""
    ends: list[float] = []

    class Ends(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            ends.append(time.time())

    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        tune.Tuner(
            tune.with_resources(nothing, {"cpu": 2}),
            param_space={"number": tune.grid_search(list(range(trials)))},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(name="bare", storage_path=folder, verbose=0, callbacks=[Ends()]),
        ).fit()
    return ends[0] - started, statistics.median(b - a for a, b in itertools.pairwise(ends))


def ours(trials: int, workers: int) -> tuple[float, float]:
    """Quickstart trials one at a time, each to its full budget, less their training."""
    changes = {
        "budget.trials": trials, "budget.rungs": 1, "budget.tokens": "20k",
        "resources.workers": workers, "resources.cpus": 2 // workers, "sampler.name": "random",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        found = recur_tune.search("quickstart", "overhead", results=folder, settings=changes)
        lines = [event for event, _ in found.directory.events()]
    started = next(line["time"] for line in lines if line["kind"] == "search")
    ends = [(line["time"], line["training_seconds"]) for line in lines if line.get("state") == "complete"]
    later = [now - before - training for (before, _), (now, training) in itertools.pairwise(ends)]
    return ends[0][0] - started - ends[0][1], statistics.median(later)


def instant(job: dict[str, Any]) -> None:
    quality = {"token_perplexity": random.Random(job["number"]).uniform(5, 10)}
    message = {"tokens": job["trial"]["tokens"], "loss": 1.0, "validation": quality, "state": "complete"}
    tune.report({"report": json.dumps(message)})


def made_up_price(config: TrialConfig) -> dict[str, float]:
    flops = 1e5 * config.window / (config.window - config.overlap) + config.window
    return {
        "flops_per_token": flops,
        "peak_memory": 1e6 * config.bptt_windows,
        "training_flops_per_token": flops,
        "parameters": 1.0,
    }


def instant_trials(count: int, sampler: str) -> list[float]:
    """The times at which trials that train nothing ended, through the whole driver but MLflow."""
    changes = [("budget.trials", count), ("sampler.name", sampler)]
    spec = parse(SearchSpec, with_overrides(read_yaml(find_space("quickstart")), changes))
    with tempfile.TemporaryDirectory() as folder:
        directory = SearchDirectory.create(Path(folder), "instant", spec)
        with directory.hold_lease():
            log = directory.open_log()
            searcher = OptunaSearcher(spec, log, made_up_price, room=lambda: 2)
            with exporting(directory, spec) as exporter:
                callback = DriverCallback(spec, log, lambda: False, exporter, ClusterWatchdog(lambda loss: None))
                fit(spec, log, TrialResources(1.0, 0.0, 1), searcher, instant, callback)
        return [event["time"] for event, _ in directory.events() if event.get("state") == "complete"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--instant", type=int, default=500)
    arguments = parser.parse_args()
    with connected(None):
        rows = {"bare Ray Tune function, which trains nothing": bare_tune(arguments.trials)}
        rows["ours, one worker"] = ours(arguments.trials, workers=1)
        rows["ours, two workers"] = ours(max(3, arguments.trials // 2), workers=2)
        ends = {sampler: instant_trials(arguments.instant, sampler) for sampler in ("random", "tpe")}
    print("\n| seconds beyond training | first trial | later trials, median |\n|---|---|---|")
    for name, (first, later) in rows.items():
        print(f"| {name} | {first:.1f} | {later:.2f} |")
    print("\n| trials that train nothing | seconds each, random sampling | TPE |\n|---|---|---|")
    gaps = {sampler: [b - a for a, b in itertools.pairwise(times)] for sampler, times in ends.items()}
    marks = [mark for mark in (10, 50, 100, 200, 300, 400, 500) if mark <= arguments.instant]
    for low, high in itertools.pairwise([1, *marks]):
        medians = [statistics.median(times[low - 1 : high - 1]) for times in gaps.values()]
        print(f"| {low} to {high} | " + " | ".join(f"{median:.3f}" for median in medians) + " |")


if __name__ == "__main__":
    main()
