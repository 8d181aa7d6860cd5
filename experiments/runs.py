"""Many runs on one device: several processes at a time, and a line in a file for each that has been scored."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comparison_results import Result

from recur_tune.config.trial import TrialConfig

# Arguments that all runs of a file share, where an experiment has them; those that tell runs apart are not among them.
_OF_ALL_RUNS = (
    "base", "corpus", "questions", "steps", "windows", "chain", "positions", "own_rate", "opening", "pieces", "set",
    "train_tokens", "tokens", "teacher_window", "facts",
)  # fmt: skip
Job = tuple[Any, ...]  # the values of what tells one run from another
Map = Callable[[Callable[[Any], Result | None], Iterable[Any]], Iterable[Result | None]]


def add_arguments(parser: argparse.ArgumentParser, name: str, base: str | None = None) -> None:
    """The options of every experiment of many runs; `name` is in the default places."""
    parser.add_argument("--base", required=base is None, default=base, help="what every run starts from")
    parser.add_argument("--out", type=Path, default=Path(f"{name}.jsonl"), help="where the numbers go")
    parser.add_argument("--runs", type=Path, default=Path(f"runs/{name}"), help="where models go")
    parser.add_argument("--readings", nargs="+", default=["300/0"], help="windows and overlaps")
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-4], help="the base's learning rates")
    parser.add_argument("--own-rate", type=float, default=1e-3, help="learning rate of what a recurrence adds")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="of all trials")


@contextmanager
def processes(count: int) -> Iterator[Map]:
    """A `map` that works in so many processes; in this one if one is enough. Others are spawned, since a process that
    was forked cannot use a GPU that its parent has used."""
    if count == 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        yield pool.imap_unordered


class Record:
    """Results in a file of JSON lines; an experiment that was stopped continues from it.

    Attributes:
        results: All of them, those of earlier calls too.
    """

    def __init__(self, file: Path, names: tuple[str, ...]) -> None:
        """`names` are the fields of a result that tell it from others."""
        self.results: list[Result] = []
        self._file, self._names = file, names
        if file.exists():
            self.results = [json.loads(line) for line in file.read_text().splitlines()]

    def run(
        self,
        mapping: Map,
        work: Callable[[tuple[argparse.Namespace, Job]], Result | None],
        arguments: argparse.Namespace,
        jobs: Iterable[Job],
        told: Callable[[Result], float],
    ) -> None:
        """Run the jobs that have no result yet and keep each result; `told` is the number that is printed. Work gives
        None where its time is over."""
        given = {name: str(getattr(arguments, name)) for name in _OF_ALL_RUNS if hasattr(arguments, name)}
        self._refuse_others(given)
        known = {tuple(one[name] for name in self._names) for one in self.results}
        waiting = [(arguments, job) for job in jobs if job not in known]
        left = 0
        for number, result in enumerate(mapping(work, waiting), start=1):
            if result is None:
                left += 1
                continue
            self.results.append(result | {"given": given})
            with self._file.open("a") as file:
                file.write(json.dumps(self.results[-1]) + "\n")
            which = " ".join(str(result[name]) for name in self._names)
            print(f"{number} of {len(waiting)}: {which}: {told(result):.4g}", flush=True)
        if left:
            print(f"{left} runs are left; the same command continues", flush=True)

    def _refuse_others(self, given: dict[str, str]) -> None:
        """Refuse a file whose runs had other settings: its numbers would stand for those of this call."""
        for one in self.results:
            for name, value in one.get("given", {}).items():
                if value != given.get(name, value):
                    option = name.replace("_", "-")
                    raise SystemExit(f"--out: {self._file} has runs of --{option} {value}; name another file.")


def trained(config: TrialConfig, folder: Path) -> Result:
    """Train one model, or resume it; its result, its costs and its speed."""
    from recur_tune.training import RESUME
    from recur_tune.training.loop import Report
    from recur_tune.training.run_folder import run_in_folder

    steps: list[Report] = []
    resume = (folder / RESUME).is_dir()
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)  # what was stopped before its first checkpoint
    result = run_in_folder(config, folder, resume=resume, listen=steps.append)
    shutil.rmtree(folder / RESUME)  # twice the model's size, times all the runs of an experiment
    return {
        "recurrence": config.recurrence, "config": config.plain_values(), **result,
        "tokens_per_second": statistics.median(step.tokens_per_second for step in steps) if steps else math.nan,
    }  # fmt: skip


def folder_name(*parts: object) -> str:
    """A run's folder name, without spaces and slashes."""
    return "-".join(map(str, parts)).replace(" ", "-").replace(",", "").replace("/", "-")
