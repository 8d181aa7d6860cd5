"""Our own samplers and stopping, through the classes that Ray Tune drives in a real search."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.outlook import Outlook
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.warm_start import WarmStart
from recur_tune.search.run.preparation import worst_costs
from recur_tune.search.run.scheduler import ParetoPruning
from recur_tune.search.run.searcher import OptunaSearcher

from .clock import Job
from .scratch import scratch_folder
from .task import COSTS, Task, Verdict

_IN_MEMORY = Path("/dev/shm")  # where there is one: a search directory is written to at every report


class _Prices:
    """What trials cost, looked up; nothing of it takes long."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def at_once(self, config: TrialConfig) -> dict[str, float]:
        costs = dict(zip(COSTS, self.task.costs(config), strict=True))
        return {**costs, "training_flops_per_token": 3 * costs["flops_per_token"]}

    __call__ = at_once


class Ours:
    """A search with a sampler of ours, with stopping or without; it may learn from earlier ones."""

    def __init__(
        self, task: Task, seed: int, sampler: str, stops: bool = True,
        learn: Callable[[SearchSpec], WarmStart] | None = None,
    ) -> None:  # fmt: skip
        self.task = task
        folder = scratch_folder(self, _IN_MEMORY if _IN_MEMORY.is_dir() else None)
        spec = task.spec(sampler, seed)
        if not stops:  # the only rung that is left is the end
            spec = spec.model_copy(update={"budget": spec.budget.model_copy(update={"rungs": 1})})
        if learn is None:
            directory = SearchDirectory.create(folder, "replay", spec)
        else:
            start = learn(spec)
            directory = SearchDirectory.create(folder, "replay", start.spec, start.knowledge.as_json())
        self.log = directory.open_log()
        self.log.record("reference", values=worst_costs(spec, _Prices(task), directory.with_own_base))
        self.searcher = OptunaSearcher(directory.spec, self.log, _Prices(task))
        self.scheduler = ParetoPruning(directory.spec, self.log, self.searcher.should_continue)
        self.begun = 0
        self.jobs: dict[int, Job] = {}

    def begin(self) -> Job | None:
        name = f"t{self.begun}"
        while (job := self.searcher.suggest(name)) is None:
            thinking = self.searcher.choice or self.searcher.unfinished
            if self.searcher.no_new_trials and self.searcher.live and not thinking:
                return None  # a trial on its way may be paused, and then be wanted
            time.sleep(0.001)  # it is chosen and priced in another thread
        if job == Searcher.FINISHED:
            return None
        self.begun += 1
        self.log.record("running", trial=job["number"])
        ray_trial = Trial("replay", stub=True, trial_id=name, config=job)
        if (paused := self.jobs.get(job["number"])) is not None:
            paused.own = ray_trial
            return paused
        self.jobs[job["number"]] = Job(parse(TrialConfig, job["trial"]), ray_trial)
        return self.jobs[job["number"]]

    def outlook(self, running: Iterable[tuple[Job, int]]) -> Outlook:
        """What further trials are expected to add; running ones report first how many tokens they have trained."""
        for job, tokens in running:
            self.log.record("report", trial=job.own.config["number"], tokens=tokens, loss=0.0)
        begun = self.searcher.look_ahead()
        found = begun and begun.result()
        if found is None:
            raise ValueError("this sampler makes no outlooks.")
        return found

    def report(self, job: Job, tokens: int, quality: float, last: bool) -> Verdict:
        report: dict[str, Any] = {"tokens": tokens, "loss": 0.0, "validation": {self.task.quality: quality}}
        result = {"report": json.dumps(report | ({"state": "complete"} if last else {}))}
        decision = self.scheduler.on_trial_result(None, job.own, result)  # type: ignore[arg-type]
        if decision == TrialScheduler.STOP or last:
            self.searcher.on_trial_complete(job.own.trial_id, result)
            return "stop"
        return "go on"
