"""Does the search work? Replay searches on a table of recorded trials and print hypervolume against tokens spent.

    python benchmarks/search_quality.py [--seeds 20] [--trials 60]

Every trial of `recorded_trials.csv` was really trained, to the full budget and with its validations on the way, so a
replay knows what any scheduler would have seen. Nothing runs on Ray, but the samplers and schedulers are the real ones.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recur_tune.recurrences import canonical
from recur_tune.searching.directory import SearchDirectory
from recur_tune.searching.front import hypervolume
from recur_tune.searching.spec import SearchSpec
from recur_tune.spec import TrialConfig, parse

TABLE = Path(__file__).parent / "recorded_trials.csv"
OBJECTIVES = ("token_perplexity", "flops_per_token", "peak_memory")
NUMBERS = ("learning_rate", "window", "overlap_of_window", "windows", "l_ins", "width")

Key = tuple[Any, ...]
History = list[tuple[int, float]]  # tokens and perplexity at every validation


@dataclass(frozen=True)
class Table:
    """Recorded trials: what each cost and how it went."""

    parameters: list[str]
    rows: dict[Key, History]
    costs: dict[Key, tuple[float, float]]

    def values(self, key: Key) -> tuple[float, float, float]:
        return (self.rows[key][-1][1], *self.costs[key])

    @property
    def reference(self) -> list[float]:
        return [1.01 * max(column) for column in zip(*map(self.values, self.rows), strict=True)]

    def choices(self, parameter: str) -> list[Any]:
        place = self.parameters.index(parameter)
        return sorted({key[place] for key in self.rows if key[place] is not None})


def read_table(path: Path) -> Table:
    rows: dict[Key, History] = defaultdict(list)
    costs: dict[Key, tuple[float, float]] = {}
    with path.open() as file:
        reader = csv.DictReader(file)
        parameters = [name for name in reader.fieldnames or [] if name not in ("tokens", *OBJECTIVES)]
        for row in reader:
            key = tuple(_value(name, row[name]) for name in parameters)
            rows[key].append((int(row["tokens"]), float(row["token_perplexity"])))
            costs[key] = float(row["flops_per_token"]), float(row["peak_memory"])
    longest = max(len(history) for history in rows.values())
    return Table(parameters, {key: sorted(h) for key, h in rows.items() if len(h) == longest}, costs)


def _value(name: str, text: str) -> Any:
    return None if text == "" else float(text) if name in NUMBERS else canonical(text)


class Account:
    """Tokens spent, and the hypervolume of what had reached the full budget by then."""

    def __init__(self, table: Table) -> None:
        self.table, self.spent, self.done = table, 0, list[tuple[float, float, float]]()
        self.curve: list[tuple[int, float]] = [(0, 0.0)]

    def finish(self, key: Key) -> None:
        self.done.append(self.table.values(key))
        self.curve.append((self.spent, hypervolume(np.array(self.done), self.table.reference)))

    def at(self, tokens: float) -> float:
        return max(volume for spent, volume in self.curve if spent <= tokens)

    def reached(self, volume: float) -> float:
        return next((spent for spent, found in self.curve if found >= volume), float("inf"))


def replay_random(table: Table, seed: int, tokens: int) -> Account:
    account, keys = Account(table), list(table.rows)
    random.Random(seed).shuffle(keys)
    for key in keys:
        if account.spent >= tokens:
            break
        account.spent += table.rows[key][-1][0]
        account.finish(key)
    return account


def replay_shipped(table: Table, seed: int, tokens: int) -> Account:
    """Ray's OptunaSearch and ASHA, on perplexity alone."""
    import optuna
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    budget, first = _rungs(table)

    def space(trial: optuna.Trial) -> None:
        plain = trial.suggest_categorical("recurrence", table.choices("recurrence")) == "none"
        for name in table.parameters:
            if name != "recurrence" and not (plain and name in ("l_ins", "width")):
                trial.suggest_categorical(name, table.choices(name))

    searcher = OptunaSearch(space, metric="token_perplexity", mode="min", seed=seed)
    asha = AsyncHyperBandScheduler(
        time_attr="tokens", metric="token_perplexity", mode="min", max_t=budget, grace_period=first, reduction_factor=2
    )
    account, number = Account(table), 0
    while account.spent < tokens:
        number += 1
        trial = Trial("replay", stub=True, trial_id=f"t{number}")
        params = searcher.suggest(trial.trial_id)
        key = tuple(params.get(name) for name in table.parameters)
        asha.on_trial_add(None, trial)
        before = 0
        for spent, perplexity in table.rows[key]:
            account.spent += spent - before
            before = spent
            result = {"tokens": spent, "token_perplexity": perplexity, "training_iteration": spent}
            decision = asha.on_trial_result(None, trial, result)
            if decision == TrialScheduler.STOP:
                break
            searcher.on_trial_result(trial.trial_id, result)
        searcher.on_trial_complete(trial.trial_id, result)
        if before == table.rows[key][-1][0]:
            account.finish(key)
    return account


def replay_ours(table: Table, seed: int, tokens: int, sampler: str = "tpe") -> Account:
    """Our sampler and our scheduler, on all three objectives."""
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import Searcher

    from recur_tune.running.sampler import TruthfulSearch
    from recur_tune.running.scheduler import ParetoHalving

    def key_of(config: TrialConfig) -> Key:
        fields = {**config.model_dump(), "overlap_of_window": config.overlap / config.window}
        if config.recurrence == "none":
            fields |= {"l_ins": None, "width": None}
        return tuple(fields[name] for name in table.parameters)

    def price(config: TrialConfig) -> dict[str, float]:
        flops, memory = table.costs[key_of(config)]
        return {"flops_per_token": flops, "peak_memory": memory, "training_flops_per_token": flops}

    account, number = Account(table), 0
    with tempfile.TemporaryDirectory() as folder:
        directory = SearchDirectory.create(Path(folder), "replay", _spec(table, seed, sampler))
        log = directory.open_log()
        log.record("reference", values=dict(zip(OBJECTIVES[1:], table.reference[1:], strict=True)))  # as every search
        searcher, scheduler = TruthfulSearch(directory.spec, log, price), ParetoHalving(directory.spec, log)
        while account.spent < tokens:
            number += 1
            while (job := searcher.suggest(f"t{number}")) is None:
                time.sleep(0.001)  # it is chosen and priced in another thread
            if job == Searcher.FINISHED:
                break
            trial = Trial("replay", stub=True, trial_id=f"t{number}", config=job)
            log.record("running", trial=job["number"])
            key, before = key_of(parse(TrialConfig, job["trial"])), 0
            for spent, perplexity in table.rows[key]:
                account.spent += spent - before
                before = spent
                last = spent == table.rows[key][-1][0]
                report = {"tokens": spent, "loss": 0.0, "validation": {"token_perplexity": perplexity}}
                result = {"report": json.dumps(report | ({"state": "complete"} if last else {}))}
                if scheduler.on_trial_result(None, trial, result) == TrialScheduler.STOP:  # type: ignore[arg-type]
                    break
            searcher.on_trial_complete(trial.trial_id, result)
            if last:
                account.finish(key)
    return account


def _rungs(table: Table) -> tuple[int, int]:
    """The budget, and the tokens of the first validation."""
    history = next(iter(table.rows.values()))
    return 1000 * (history[-1][0] // 1000), 1000 * (history[0][0] // 1000)


def _spec(table: Table, seed: int, sampler: str) -> SearchSpec:
    budget, first = _rungs(table)
    whole = {name: [int(choice) for choice in table.choices(name)] for name in ("window", "windows", "l_ins", "width")}
    shares = table.choices("overlap_of_window")
    overlap = {"from": min(shares), "to": max(shares), "step": shares[1] - shares[0], "of": "window"}
    space = {
        "base": "tiny",
        "recurrence": {"none": None, "pooled": {"l_ins": whole["l_ins"], "width": whole["width"]}},
        "window": whole["window"],
        "windows": whole["windows"],
        "overlap": overlap,
        "learning_rate": table.choices("learning_rate"),
    }
    rungs = 1
    while budget > first * 2 ** (rungs - 1) * 1.01:
        rungs += 1
    return parse(
        SearchSpec,
        {"space": space, "objectives": OBJECTIVES, "sampler": {"name": sampler, "seed": seed},
         "budget": {"tokens": budget, "trials": 10_000, "rungs": rungs, "reduction": 2}},
    )  # fmt: skip


METHODS: dict[str, Callable[[Table, int, int], Account]] = {
    "random search": replay_random,
    "OptunaSearch + ASHA on perplexity": replay_shipped,
    "ours, TPE": replay_ours,
    "ours, known costs": partial(replay_ours, sampler="known-costs"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=60, help="random search's, which fixes the tokens for all")
    arguments = parser.parse_args()
    table = read_table(arguments.table)
    tokens = arguments.trials * max(history[-1][0] for history in table.rows.values())
    everything = hypervolume(np.array([table.values(key) for key in table.rows]), table.reference)
    print(f"{len(table.rows)} recorded trials; all of them together: hypervolume {everything:.4f}")
    accounts = {
        name: [replay(table, seed, tokens) for seed in range(arguments.seeds)] for name, replay in METHODS.items()
    }
    goal = statistics.median(account.at(tokens) for account in accounts["random search"])
    shares = (0.1, 0.25, 0.5, 0.75, 1.0)
    heads = "".join(f" {share:.0%} |" for share in shares)
    title = f"median of {arguments.seeds} seeds, after so much of {tokens / 1e6:.1f}M tokens"
    print(f"\n| {title} |{heads} random's last reached after |")
    print("|---|" + "---|" * (len(shares) + 1))
    for name, runs in accounts.items():
        cells = "".join(f" {statistics.median(run.at(share * tokens) for run in runs):.4f} |" for share in shares)
        needed = statistics.median_low(run.reached(goal) for run in runs) / tokens
        print(f"| {name} |{cells} {'never' if needed == float('inf') else f'{needed:.0%}'} |")


if __name__ == "__main__":
    main()
