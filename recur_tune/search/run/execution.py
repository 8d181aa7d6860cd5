"""The two lanes in which Ray trains a trial, with one worker or with several.

Ray brings these functions into every process that a trial takes. Most of them only wait for the one that trains, so the
models are loaded there alone.
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
    """One worker: train right here, in the actor that Ray Tune uses again."""
    trial = load(_TRIAL)
    from ray import tune

    def train(report: Callable[[dict[str, Any]], None]) -> None:
        trial.use_cores(job["cpus"])
        trial.run_trial(job, report)

    with closing(messages_of(train)) as messages:
        for message in messages:
            tune.report({"report": json.dumps(message)})  # leaves by an exception when others have beaten the trial


def train_on_workers(job: dict[str, Any]) -> None:
    """Several workers: they stay with this actor for its next trial, and are replaced when one of them is lost."""
    from ray import tune

    for failures in range(1, _MOST_FAILURES + 2):
        try:
            for message in _workers(job).train(job):
                tune.report({"report": json.dumps(message)})
            return
        except WorkersFailed as failed:
            _end_workers()
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


_kept: list[WorkerGroup] = []  # by this process, one at most


def _workers(job: dict[str, Any]) -> WorkerGroup:
    if not _kept:
        _kept.append(WorkerGroup(job))
    return _kept[0]


def _end_workers() -> None:
    _kept.pop().end()
