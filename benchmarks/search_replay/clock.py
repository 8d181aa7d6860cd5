"""Replay of a search with several workers: an event is a validation, and a free worker begins the next trial.

A trial takes as long as its tokens times its FLOPs per token, so workers do not finish together. The budget is tokens
over all workers; a trial between two validations counts by its share.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from recur_tune.config.trial import TrialConfig

from .task import Task, Verdict


@dataclass
class Job:
    """A trial that runs."""

    config: TrialConfig
    own: Any = None  # what the method knows it by
    said: int = 0  # validations


class Method(Protocol):
    """Proposes trials and decides at validations."""

    def begin(self) -> Job | None:
        """The next trial for a free worker, new or paused before; None where there is none for now."""

    def report(self, job: Job, tokens: int, quality: float, last: bool) -> Verdict:
        """Hear of a validation; of the last one the verdict does not matter."""


@dataclass(frozen=True, order=True)
class _Stretch:
    """What a worker trains between two validations."""

    ends: float
    order: int
    began: float
    before: int  # the trial's tokens until then
    tokens: int
    job: Job

    def trained(self, now: float) -> float:
        return self.tokens * (now - self.began) / (self.ends - self.began)


class Finished(NamedTuple):
    """A trial at its full budget: tokens that all had spent by then, its objectives, and the time in FLOPs."""

    spent: float
    values: tuple[float, float, float]
    time: float


Watch = Callable[[float, list[tuple[Job, int]]], None]  # the tokens that all have spent, and those of each that runs


def replay(
    task: Task, method: Method, workers: int, tokens: float, watch: Watch = lambda spent, running: None
) -> list[Finished]:
    """The trials that reached the full budget before the tokens were spent, in their order. `watch` is told whenever
    free workers have begun their next trials."""
    finished: list[Finished] = []
    running: list[_Stretch] = []
    order, now, reported = itertools.count(), 0.0, 0

    def train(job: Job) -> None:
        history = task.history(job.config)
        before = history[job.said - 1][0] if job.said else 0
        tokens = history[job.said][0] - before
        ends = now + tokens * task.costs(job.config)[0]
        heapq.heappush(running, _Stretch(ends, next(order), now, before, tokens, job))

    while True:
        while len(running) < workers and (job := method.begin()) is not None:
            train(job)
        if not running:
            return finished
        spent = reported + sum(stretch.trained(now) for stretch in running)
        watch(spent, [(stretch.job, stretch.before + round(stretch.trained(now))) for stretch in running])
        stretch = heapq.heappop(running)
        now, job = stretch.ends, stretch.job
        reported += stretch.tokens
        spent = reported + sum(other.trained(now) for other in running)
        if spent > tokens:
            return finished
        history = task.history(job.config)
        said, quality = history[job.said]
        job.said += 1
        last = job.said == len(history)
        if last:
            finished.append(Finished(spent, task.values(job.config), now))
        if method.report(job, said, quality, last) == "go on" and not last:
            train(job)
