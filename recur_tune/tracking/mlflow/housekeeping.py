"""Renaming and removing a search's runs in MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.tracking_place import DELIVERED, Delivered, tracking_uri, without_password
from recur_tune.tracking.mlflow.calls import is_active, log_run, quiet_client, reason
from recur_tune.tracking.mlflow.database import one_writer
from recur_tune.tracking.mlflow.tracker import DeliveryFailed

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow import MlflowClient


def remove_runs(directory: SearchDirectory) -> None:
    """Delete a search's runs; `mlflow` can still restore them."""
    with _runs(directory) as (client, delivered):
        for run in [*delivered.runs.values(), delivered.parent]:
            if run and is_active(client, run):
                client.delete_run(run)


def rename_runs(directory: SearchDirectory) -> None:
    """Give a search's runs in MLflow the search's new name."""
    with _runs(directory) as (client, delivered):
        for number, run in delivered.runs.items():
            if is_active(client, run):
                folder = str(directory.trial(number))
                log_run(client, run, tags={"search": directory.name, "recur_tune.folder": folder})
        if delivered.parent and is_active(client, delivered.parent):
            client.update_run(delivered.parent, name=directory.name)
            log_run(client, delivered.parent, tags={"search": directory.name})


@contextmanager
def _runs(directory: SearchDirectory) -> Iterator[tuple[MlflowClient, Delivered]]:
    uri = tracking_uri(directory)
    delivered = Delivered.read(directory.path / DELIVERED, uri)
    try:
        with one_writer(uri):
            yield quiet_client(uri), delivered
    except Exception as error:  # MLflow, databases and networks raise all kinds
        raise DeliveryFailed(f"MLflow at {without_password(uri)} did not answer ({reason(error)}).") from error
