"""Ray Tune's trainable functions: a trial with one worker, and a trial with several.

Ray loads this module in every process of a trial. Most of these only wait for the one that trains, so torch is imported
there alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from recur_tune.common.loading import load
from recur_tune.search.record.state import STORAGE
from recur_tune.search.run.training_thread import messages_of
from recur_tune.search.run.worker_group import WorkerGroup, WorkersFailed

_TRIAL = "recur_tune.search.run.trainable"
_MOST_FAILURES = 3  # of a trial's workers


def train_in_actor(job: dict[str, Any]) -> None:
    """Train with one worker, in Ray Tune's own actor, which is used for the next trial too."""
    trial = load(_TRIAL)
    from ray import tune

    def train(report: Callable[[dict[str, Any]], None]) -> None:
        trial.use_cores(job["cpus"])
        trial.run_trial(job, report)

    with closing(messages_of(train)) as messages:
        for message in messages:
            tune.report({"report": json.dumps(message)})  # raises where the scheduler stops the trial


def train_on_workers(job: dict[str, Any]) -> None:
    """Train with several workers. They are kept for this actor's next trial, and replaced when one of them is lost."""
    from ray import tune

    for failures in range(1, _MOST_FAILURES + 2):
        try:
            for message in _workers(job).train(job):
                tune.report({"report": json.dumps(message)})
            return
        except WorkersFailed as failed:
            end_workers()
            trial = load(_TRIAL)
            if fault := trial.fault_of_a_worker(failed.errors):
                tune.report({"report": json.dumps(trial.ending("paused", str(fault), STORAGE))})
                return
            if trial.has_moved(failed.errors):
                raise
            if failures > _MOST_FAILURES:
                outcome = trial.outcome_of(failed.errors[0], Path(job["folder"])) | {"replace_actor": True}
                tune.report({"report": json.dumps(outcome)})
                raise


_kept: list[WorkerGroup] = []  # the workers of this process, one group at most


def _workers(job: dict[str, Any]) -> WorkerGroup:
    if not _kept:
        _kept.append(WorkerGroup(job))
    return _kept[0]


def end_workers() -> None:
    """End the workers of this process, if it has any; its next trial starts others."""
    while _kept:
        _kept.pop().end()
