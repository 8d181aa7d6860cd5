"""A driver for tests: it does what Ray Tune does with a searcher and a scheduler, without Ray."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.run.scheduler import ParetoPruning
from recur_tune.search.run.searcher import OptunaSearcher

FIELDS: dict[str, Any] = {
    "space": {
        "base": "tiny",
        "recurrence": {"none": None, "pooled": {"l_ins": [1, 2, 3], "width": {"from": 8, "to": 300}}},
        "window": [16, 32, 64],
        "overlap": {"from": 0, "to": 0.5, "of": "window"},
        "learning_rate": {"from": 1e-4, "to": 1e-2, "log": True},
    },
    "objectives": ["token_perplexity", "flops_per_token"],
    "budget": {"tokens": 100, "trials": 8, "rungs": 2},
    "sampler": {"name": "tpe"},
}


def price(config: TrialConfig) -> dict[str, float]:
    """A price at once: the window is all that counts."""
    return {
        "flops_per_token": float(config.window), "training_flops_per_token": 3.0 * config.window,
        "peak_memory": 1000.0 * config.window, "parameters": 1.0,
    }  # fmt: skip


class RayTrial:
    """What the scheduler sees of Ray's trial."""

    def __init__(self, trial_id: str, config: dict[str, Any]) -> None:
        self.trial_id, self.config, self.max_failures = trial_id, config, 3


class Driver:
    """Does what Ray Tune does with a searcher and a scheduler, without Ray."""

    def __init__(
        self,
        directory: SearchDirectory,
        price: Callable[[TrialConfig], dict[str, float]] = price,
        proposes: bool = True,
    ) -> None:
        self.log = directory.open_log()
        self.searcher = OptunaSearcher(directory.spec, self.log, price, proposes=proposes)
        self.scheduler = ParetoPruning(directory.spec, self.log, self.searcher.should_continue)
        self.asked = 0

    def ask(self, starts: bool = True) -> RayTrial | None:
        """The next trial; where it does not start, its worker dies before."""
        self.asked += 1
        while (suggested := self.searcher.suggest(f"ray{self.asked}")) is None:
            if self.searcher.choice is not None:
                wait([self.searcher.choice])
            elif self.searcher.proposal is not None:
                wait([self.searcher.proposal.costs])  # for its price
        if suggested == Searcher.FINISHED:
            return None
        if starts:
            self.log.record("running", trial=suggested["number"])
        return RayTrial(f"ray{self.asked}", suggested)

    def report(self, trial: RayTrial, tokens: int, perplexity: float | None = None, **end: Any) -> str:
        validation = None if perplexity is None else {"token_perplexity": perplexity}
        message = {"tokens": tokens, "loss": 1.0, "validation": validation, **end}
        result = {"report": json.dumps(message)}
        decision = self.scheduler.on_trial_result(None, trial, result)  # type: ignore[arg-type]
        if decision == TrialScheduler.STOP:
            self.searcher.on_trial_complete(trial.trial_id, result)
        return decision

    def finish_two(self) -> None:
        """Show the scheduler how curves go on; then it prunes what is far worse."""
        for end in (4.8, 4.9):
            trial = self.ask()
            assert trial is not None
            self.report(trial, 50, 5.0)
            self.report(trial, 100, end, state="complete")

    def told(self) -> list[optuna.trial.FrozenTrial]:
        """The study's trials, less the first points that nobody has asked for yet."""
        return [trial for trial in self.searcher.study.get_trials() if trial.state != TrialState.WAITING]

    def states(self) -> list[TrialState]:
        return [trial.state for trial in self.told()]


def changed(tmp_path: Path, **fields: Any) -> SearchDirectory:
    return SearchDirectory.create(tmp_path, "s", parse(SearchSpec, FIELDS | fields))
