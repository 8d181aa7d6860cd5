"""Peers that Optuna proposes for: they begin with the points that ours begin with, and de-duplicate as ours do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import optuna
from optuna.trial import TrialState
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from recur_tune.search.propose.optuna_study import first_points

from .clock import Job
from .task import Task, Verdict

PATIENCE, MOST_TRIES = 10, 200  # known proposals in a row before random ones are taken, and before the search ends


class Proposer(Protocol):
    """Proposes what to train next."""

    def ask(self, by_chance: bool) -> tuple[Any, dict[str, Any]]:
        """A handle, and a point by the sampler's names."""

    def tell(self, handle: Any, values: list[float] | None) -> None:
        """The result: all objectives, or None where the trial was stopped."""

    def refuse(self, handle: Any) -> None:
        """The point is known already."""


class Stopping(Protocol):
    """Decides at a validation."""

    def should_continue(self, trial: int, tokens: int, values: list[float]) -> bool:
        """Whether a trial shall be trained further."""


class Peer:
    """A proposer, with a rule for stopping or without."""

    def __init__(self, task: Task, proposer: Proposer, stopping: Stopping | None = None) -> None:
        self.task, self.spec, self.proposer, self.stopping = task, task.spec(), proposer, stopping
        self.known: list[dict[str, Any]] = []

    def begin(self) -> Job | None:
        for tries in range(MOST_TRIES):
            handle, point = self.proposer.ask(by_chance=tries >= PATIENCE)
            params = self.spec.parsed_space.draw(optuna.trial.FixedTrial(point))
            if params not in self.known:
                self.known.append(params)
                return Job(self.spec.trial_config(params), (len(self.known), handle))
            self.proposer.refuse(handle)
        return None

    def report(self, job: Job, tokens: int, quality: float, last: bool) -> Verdict:
        number, handle = job.own
        values = [quality, *self.task.costs(job.config)]
        if last:
            self.proposer.tell(handle, values)
        elif self.stopping is not None and not self.stopping.should_continue(number, tokens, values):
            self.proposer.tell(handle, None)
            return "stop"
        return "go on"


class OptunaProposer:
    """One of Optuna's samplers in a study of its own."""

    def __init__(self, task: Task, seed: int, sampler: optuna.samplers.BaseSampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space = task.spec().parsed_space
        self.study = optuna.create_study(directions=["minimize"] * len(task.objectives), sampler=sampler)
        self.sampler, self.chance = sampler, optuna.samplers.RandomSampler(seed=seed)
        for point in first_points(task.spec()).values():
            self.study.enqueue_trial(point)

    def ask(self, by_chance: bool) -> tuple[optuna.Trial, dict[str, Any]]:
        self.study.sampler = self.chance if by_chance else self.sampler
        trial = self.study.ask()
        self.space.draw(trial)
        return trial, trial.params

    def tell(self, handle: optuna.Trial, values: list[float] | None) -> None:
        self.study.tell(handle, values, state=TrialState.PRUNED if values is None else TrialState.COMPLETE)

    def refuse(self, handle: optuna.Trial) -> None:
        self.study.tell(handle, state=TrialState.FAIL)


class ShippedPair:
    """Ray's OptunaSearch and ASHA, which look at one metric: the quality."""

    def __init__(self, task: Task, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.task, self.spec = task, task.spec()
        first, *_, budget = self.spec.budget.rung_tokens
        self.searcher = OptunaSearch(
            lambda trial: self.spec.parsed_space.draw(trial) and None, metric=task.quality, mode="min", seed=seed,
            points_to_evaluate=list(first_points(self.spec).values()),
        )  # fmt: skip
        self.asha = AsyncHyperBandScheduler(
            time_attr="tokens", metric=task.quality, mode="min", max_t=budget, grace_period=first,
            reduction_factor=self.spec.budget.reduction,
        )  # fmt: skip
        self.chance = OptunaProposer(task, seed, optuna.samplers.RandomSampler(seed=seed))
        self.known: list[dict[str, Any]] = []
        self.asked = 0

    def begin(self) -> Job | None:
        for tries in range(MOST_TRIES):
            self.asked += 1
            name, by_chance = f"t{self.asked}", tries >= PATIENCE
            point = self.chance.ask(by_chance)[1] if by_chance else self.searcher.suggest(name)
            params = self.spec.parsed_space.draw(optuna.trial.FixedTrial(point))
            if params not in self.known:
                self.known.append(params)
                trial = Trial("replay", stub=True, trial_id=name)
                self.asha.on_trial_add(None, trial)
                return Job(self.spec.trial_config(params), (trial, not by_chance))
            if not by_chance:
                self.searcher.on_trial_complete(name, error=True)
        return None

    def report(self, job: Job, tokens: int, quality: float, last: bool) -> Verdict:
        trial, is_its_own = job.own
        result = {"tokens": tokens, self.task.quality: quality, "training_iteration": tokens}
        stops = self.asha.on_trial_result(None, trial, result) == TrialScheduler.STOP or last
        if is_its_own and stops:
            self.searcher.on_trial_complete(trial.trial_id, result)
        elif is_its_own:
            self.searcher.on_trial_result(trial.trial_id, result)
        return "stop" if stops else "go on"


SAMPLERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "TPE": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "NSGA-II": lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=10),
    "NSGA-III": lambda seed: optuna.samplers.NSGAIIISampler(seed=seed, population_size=10),
    "GPSampler": lambda seed: optuna.samplers.GPSampler(seed=seed),
}


def optuna_peer(task: Task, seed: int, sampler: str, stopping: Stopping | None = None) -> Peer:
    """A peer by its sampler's name."""
    return Peer(task, OptunaProposer(task, seed, SAMPLERS[sampler](seed)), stopping)
