"""A search's runs in MLflow: a parent run, and a child run for each trial."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import TrialRecord
from recur_tune.search.record.subject import bases_of, corpus_of, shape_params
from recur_tune.search.record.tracking_place import FILES, NOTE, SMALL_PICTURE, Delivered, is_server
from recur_tune.tracking.mlflow.calls import log_run
from recur_tune.tracking.mlflow.datasets import dataset_inputs, digests
from recur_tune.tracking.mlflow.run_updates import milliseconds
from recur_tune.tracking.mlflow.views import view_tags

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "recur-tune"
# Else MLflow guesses the kind of the experiment, and asks the user.
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}


def find_or_create_search(client: MlflowClient, directory: SearchDirectory, spec: SearchSpec, uri: str) -> Delivered:
    """The search's parent run, with nothing else delivered yet."""
    experiment = _find_or_create_experiment(client, directory, uri)
    found = client.search_runs([experiment], f"tags.`recur_tune.search_id` = '{directory.identity['id']}'")
    run = found[0] if found else _create_search(client, directory, experiment)
    # A resumed search may have a larger budget, and MLflow's parameters keep their first value.
    params = {name: value for name, value in _search_params(spec).items() if name not in run.data.params}
    log_run(client, run.info.run_id, params=params)
    delivered = Delivered(uri, experiment, run.info.run_id, corpus=digests(corpus_of(spec)))
    delivered.pictured = delivered.image(SMALL_PICTURE) in run.data.tags.get(NOTE, "")
    client.log_inputs(delivered.parent, dataset_inputs(corpus_of(spec), delivered.corpus))
    for tag, value in view_tags(spec, delivered).items():
        client.set_experiment_tag(experiment, tag, value)
    return delivered


def create_trial(
    client: MlflowClient, directory: SearchDirectory, delivered: Delivered, trial: TrialRecord, start: float
) -> str:
    """Create a trial's run with this start time."""
    tags = {"mlflow.parentRunId": delivered.parent, "recur_tune.trial": str(trial.number), **_tags(directory)}
    name = trial.name
    if trial.repeats is not None:  # by `confirm`: these are told apart from the search's own trials
        tags |= {"recur_tune.repeats": f"T{trial.repeats}", "recur_tune.seed": str(trial.seed)}
        name = f"{trial.name} (T{trial.repeats}, seed {trial.seed})"
    return client.create_run(delivered.experiment, milliseconds(start), tags, name).info.run_id


def _create_search(client: MlflowClient, directory: SearchDirectory, experiment: str) -> Run:
    identity = directory.identity
    known = {"recur_tune.search_id": identity["id"], "recur_tune.version": identity["version"]}
    # As elsewhere, the search's time begins after tokenising.
    begun = directory.state().started or identity["created"]
    return client.create_run(experiment, milliseconds(begun), _tags(directory) | known, directory.name)


def _tags(directory: SearchDirectory) -> dict[str, str]:
    """Tags of every run, for MLflow's run list and filters."""
    return {"search": directory.name, "mlflow.source.name": EXPERIMENT, "mlflow.user": _user()}


def _find_or_create_experiment(client: MlflowClient, directory: SearchDirectory, uri: str) -> str:
    """For a local database the artifact folder is given: MLflow would use the current folder."""
    if experiment := client.get_experiment_by_name(EXPERIMENT):
        for tag in EXPERIMENT_TAGS.keys() - experiment.tags.keys():
            client.set_experiment_tag(experiment.experiment_id, tag, EXPERIMENT_TAGS[tag])
        return experiment.experiment_id
    files = None if is_server(uri) else (directory.path.absolute().parent / FILES).as_uri()
    return client.create_experiment(EXPERIMENT, files, EXPERIMENT_TAGS)


def _search_params(spec: SearchSpec) -> dict[str, Any]:
    """Parameters by which searches are compared."""
    sections = spec.model_dump(include={"budget", "sampler", "resources"})
    flat = {f"{section}.{name}": value for section, fields in sections.items() for name, value in fields.items()}
    limits = {f"limits.{name}": OBJECTIVES[name].format(limit) for name, limit in spec.limits.items()}
    subject = {"corpus": corpus_of(spec), "base": ", ".join(bases_of(spec)), **shape_params(spec)}
    return {"objectives": ", ".join(spec.objectives), **subject, **flat, **limits}


def _user() -> str:
    """The user's name; in a container there may be none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
