"""MLflow databases and a real server for the tests beside this file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from recur_tune.common.localhost import free_ports_from
from recur_tune.tracking.mlflow.server import answering_server
from tests import forked
from tests.command import own_server
from tests.database import empty_database
from tests.ports import taken_port

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


def _probed_too_early(wanted: int) -> Iterator[int]:
    """The wanted port, though it is taken, and then free ones. The server that cannot have it is out of the fork
    server, and need not load MLflow; of one that listens it is told whose child it is."""
    with pytest.MonkeyPatch.context() as variables:
        forked.start_from(own_server(), variables)
        yield wanted
    yield from free_ports_from(wanted)


@pytest.fixture(scope="module")
def server(server_folder: Path) -> Iterator[str]:
    """A server of its own process, on the next port: the wanted one was somebody's when MLflow came to it."""
    uri = f"sqlite:///{server_folder}/mlflow.db"
    with taken_port() as taken, pytest.MonkeyPatch.context() as patch:
        patch.setattr("recur_tune.tracking.mlflow.server.free_ports_from", _probed_too_early)
        with answering_server(uri, taken, server_folder / "log") as (_, port):
            assert port > taken
            yield f"http://127.0.0.1:{port}"
