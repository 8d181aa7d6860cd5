"""MLflow databases and a real server for the tests beside this file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from recur_tune.tracking.server import answering_server
from tests.database import empty_database
from tests.ports import FIRST

os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "60"  # a delivery that fails is sent again; here it has to arrive at once


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder with a database."""
    empty_database(tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture(scope="module")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server has its database."""
    return empty_database(tmp_path_factory.mktemp("server") / "mlflow.db").parent


@pytest.fixture(scope="module")
def server(server_folder: Path) -> Iterator[str]:
    """A server of its own process."""
    uri = f"sqlite:///{server_folder}/mlflow.db"
    with answering_server(uri, FIRST, server_folder / "log") as (_, port):
        yield f"http://127.0.0.1:{port}"
