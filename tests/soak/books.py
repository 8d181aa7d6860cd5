"""The books of a search: its log, Optuna's study and MLflow's runs, read from outside while it runs or afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import optuna
from mlflow import MlflowClient
from optuna.trial import TrialState

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.state import Event
from recur_tune.search.run.searcher import study_storage


@dataclass(frozen=True)
class Told:
    """What Optuna was told of a trial."""

    state: str  # RUNNING, COMPLETE, PRUNED or FAIL
    values: list[float] | None = None


@dataclass(frozen=True)
class Run:
    """A trial's run in MLflow."""

    trial: int
    status: str
    metrics: dict[str, float]


@dataclass
class Books:
    """All three at a moment."""

    objectives: tuple[str, ...]
    events: list[Event]
    study: dict[int, Told] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    searches: list[str] = field(default_factory=list)  # the statuses of MLflow's runs of the search itself


def read_books(directory: SearchDirectory, database: Path) -> Books:
    """The log last: it is written first, so that it knows whatever the others know."""
    searches, runs = _read_mlflow(directory, database)
    study = _read_study(directory)
    events = [event for event, _ in directory.events()]
    return Books(directory.spec.objectives, events, study, runs, searches)


def _read_study(directory: SearchDirectory) -> dict[int, Told]:
    try:
        study = optuna.load_study(study_name=directory.name, storage=study_storage(directory.path))
    except (KeyError, FileNotFoundError):  # nothing was asked yet
        return {}
    known = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    return {trial.number: Told(trial.state.name, trial.values) for trial in known}


def _read_mlflow(directory: SearchDirectory, database: Path) -> tuple[list[str], list[Run]]:
    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("recur-tune")
    if experiment is None:
        return [], []
    where = [experiment.experiment_id]
    parents = client.search_runs(where, f"tags.`recur_tune.search_id` = '{directory.identity['id']}'")
    children = [
        run
        for parent in parents
        for run in client.search_runs(where, f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'", max_results=1000)
    ]
    runs = [Run(int(run.data.tags["recur_tune.trial"]), run.info.status, run.data.metrics) for run in children]
    return [run.info.status for run in parents], runs
