"""Calls to MLflow's client: quiet, soon over, and as few as possible."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from recur_tune.search.record.tracking_place import without_password
from recur_tune.tracking.mlflow.run_updates import Point, RunUpdate, milliseconds

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow import MlflowClient
    from mlflow.entities import Run

# Only where the user has not decided otherwise. MLflow's own patience is minutes, ours is the next delivery.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def quiet_client(uri: str) -> MlflowClient:
    """A client that fails soon and leaves the terminal to the search."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for talkative in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(talkative).setLevel(logging.ERROR)
    return MlflowClient(uri)


def children(client: MlflowClient, experiment: str, parent: str) -> dict[int, Run]:
    """The runs of the trials that the server has, by the trials' numbers."""
    runs: dict[int, Run] = {}
    token = None
    while True:
        page = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'", page_token=token)
        runs |= {int(run.data.tags["recur_tune.trial"]): run for run in page}
        if not page.token:
            return runs
        token = page.token


def is_active(client: MlflowClient, run: str) -> bool:
    """Whether the server has the run, and nobody has deleted it."""
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
    tags: Mapping[str, str] = {},
    model: str | None = None,
) -> None:
    """Send a run's values in as few calls as possible; what is None or empty says nothing.

    With a logged `model` the metrics are the model's too.
    """
    from mlflow.entities import Metric, Param, RunTag

    client.log_batch(
        run,
        [Metric(*point, model) for point in points],
        [Param(name, str(value)) for name, value in params.items() if value is not None],
        [RunTag(name, value) for name, value in tags.items() if value],
        synchronous=True,
    )


def set_status(client: MlflowClient, run: str, news: RunUpdate) -> None:
    """Send a run's status where it changed."""
    if news.status == "RUNNING":
        client.update_run(run, news.status)
    elif news.status is not None:
        client.set_terminated(run, news.status, milliseconds(news.changed))


def reason(error: BaseException) -> str:
    """The system's own words where there are any under MLflow's, else the beginning of MLflow's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    words = without_password(" ".join(str(error).split())) or type(error).__name__
    return words if len(words) <= 200 else f"{words[:200]}..."
