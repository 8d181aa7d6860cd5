"""Ray Tune's trainable functions: a trial with one worker, and a trial with several.

Ray loads this module in every process of a trial. Most of these only wait for the one that trains, so torch is imported
there alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

from recur_tune.common.loading import load
from recur_tune.search.run.messages import Message
from recur_tune.search.run.train_run import TrainRun
from recur_tune.search.run.training_thread import messages_of

_TRIAL = "recur_tune.search.run.trainable"


def train(job: Message) -> None:
    """Train a trial with as many workers as it has."""
    (train_in_actor if job["workers"] == 1 else train_on_workers)(job)


def train_in_actor(job: Message) -> None:
    """Train with one worker, in Ray Tune's own actor, which is used for the next trial too."""
    trial = load(_TRIAL)
    from ray import tune

    def work(report: Callable[[Message], None]) -> None:
        trial.use_cores(job["cpus"])
        trial.run_trial(job, report)

    with closing(messages_of(work)) as messages:
        for message in messages:
            tune.report({"report": json.dumps(message)})  # raises where the scheduler stops the trial


def train_on_workers(job: Message) -> None:
    """Train with several workers, which Ray Train runs. They are kept for this actor's next trial."""
    from ray import tune

    for message in _run_for(job).train(job):
        tune.report({"report": json.dumps(message)})


_kept: list[TrainRun] = []  # the run of this process, one at most


def _run_for(job: Message) -> TrainRun:
    if not _kept:
        _kept.append(TrainRun(job))
    return _kept[0]
