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

from recur_tune.cluster.names import trial_name
from recur_tune.cluster.ray_cluster import WAITING_CPU
from recur_tune.loading import load
from recur_tune.running.training_thread import messages_of
from recur_tune.searching.state import STORAGE

_TRIAL = "recur_tune.running.trainable"


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
    """Several workers: Ray Train starts them, and starts them again when one is lost."""
    from ray import tune
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    resources = {"CPU": job["cpus"] - WAITING_CPU} | ({"GPU": job["gpus"]} if job["gpus"] else {})
    folder = Path(job["folder"])
    trainer = TorchTrainer(
        _train_as_worker,
        train_loop_config=job,
        scaling_config=ScalingConfig(
            num_workers=job["workers"], use_gpu=bool(job["gpus"]), resources_per_worker=resources
        ),
        run_config=RunConfig(
            name=trial_name(folder),
            storage_path=str(folder.parent.parent / "ray"),
            callbacks=[TuneReportCallback()],
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        trial = load(_TRIAL)
        if fault := trial.fault_of_a_worker(error):
            tune.report({"report": json.dumps(trial.ending("paused", str(fault), STORAGE))})
            return
        outcome = trial.outcome_of(error, folder) | {"replace_actor": True}
        tune.report({"report": json.dumps(outcome)})
        raise


def _train_as_worker(job: dict[str, Any]) -> None:
    trial = load(_TRIAL)
    from ray import train

    trial.use_cores(job["cpus"])
    trial.run_trial(job, lambda message: train.report({"report": json.dumps(message)}))
