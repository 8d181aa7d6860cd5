"""Calls to MLflow's client: without output, with short timeouts, and as few as possible."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from recur_tune.search.record.tracking_place import without_password
from recur_tune.tracking.mlflow.run_updates import Point, RunUpdate, milliseconds

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow import MlflowClient
    from mlflow.entities import Run

# Defaults, which a user's own variables override. MLflow would retry for minutes; the next delivery tries again anyway.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def quiet_client(uri: str) -> MlflowClient:
    """A client that fails soon and prints nothing."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for talkative in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(talkative).setLevel(logging.ERROR)
    return MlflowClient(uri)


def children(client: MlflowClient, experiment: str, parent: str, trial: int | None = None) -> dict[int, Run]:
    """The trials' runs on the server by the trials' numbers, or that of one trial."""
    condition = f"tags.mlflow.parentRunId = '{parent}'{_of_trial(trial)}"
    runs = all_pages(lambda token: client.search_runs([experiment], condition, page_token=token))
    return {int(run.data.tags["recur_tune.trial"]): run for run in runs}


def all_pages(search: Callable[[str | None], Any]) -> Iterator[Any]:
    """Everything that a search of MLflow's finds; it is called with the token of each page."""
    token = None
    while True:
        page = search(token)
        yield from page
        if not (token := page.token):
            return


def has_another_run(client: MlflowClient, experiment: str, parent: str, trial: int, run: str) -> bool:
    """Whether a trial has another run beside this one."""
    found = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'{_of_trial(trial)}")
    return any(one.info.run_id != run for one in found)


def _of_trial(trial: int | None) -> str:
    return "" if trial is None else f" and tags.`recur_tune.trial` = '{trial}'"


def is_active(client: MlflowClient, run: str) -> bool:
    """Whether the server has the run and it is not deleted."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run).info.lifecycle_stage == "active"
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


def log_run(
    client: MlflowClient,
    run: str,
    points: Iterable[Point] = (),
    params: Mapping[str, Any] = {},
    tags: Mapping[str, str | None] = {},
    model: str | None = None,
) -> None:
    """Send a run's values in one call, without those that are None.

    With a logged `model` the metrics are the model's too.
    """
    from mlflow.entities import Metric, Param, RunTag

    client.log_batch(
        run,
        [Metric(*point, model) for point in points],
        [Param(name, str(value)) for name, value in params.items() if value is not None],
        [RunTag(name, value) for name, value in tags.items() if value is not None],
        synchronous=True,
    )


def set_status(client: MlflowClient, run: str, update: RunUpdate) -> None:
    """Send a run's status where it changed."""
    if update.status == "RUNNING":
        client.update_run(run, update.status)
    elif update.status is not None:
        client.set_terminated(run, update.status, milliseconds(update.changed))


def reason(error: BaseException) -> str:
    """Why a call failed: the system's error where there is one below MLflow's, else the start of MLflow's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    words = without_password(" ".join(str(error).split())) or type(error).__name__
    return words if len(words) <= 200 else f"{words[:200]}..."
