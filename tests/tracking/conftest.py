"""MLflow databases and a real server for the tests beside this file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from recur_tune.localhost import free_port_from
from recur_tune.tracking.server import mlflow_server, wait_until_it_answers


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database; MLflow takes seconds to make one."""
    path = tmp_path_factory.mktemp("migrated") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def results(tmp_path: Path, migrated: Path) -> Path:
    """A results folder with a database."""
    shutil.copy(migrated, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture(scope="module")
def server_folder(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Path:
    """Where the server has its database."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(migrated, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="module")
def server(server_folder: Path) -> Iterator[str]:
    """A server of its own process."""
    uri, port, log = f"sqlite:///{server_folder}/mlflow.db", free_port_from(20_000), server_folder / "log"
    with mlflow_server(uri, port, log) as process:
        wait_until_it_answers(process, port, uri, log)
        yield f"http://127.0.0.1:{port}"
