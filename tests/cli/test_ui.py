"""`recur-tune ui`: a real MLflow server over a results folder, found by its address and ended by Ctrl-C."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import sqlite3
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.tracking_place import DELIVERED, Delivered, tracking_uri
from recur_tune.tracking.mlflow.tracker import Tracker
from tests.cli.run import run
from tests.command import Command
from tests.database import empty_database
from tests.ports import FIRST, taken_port
from tests.search.run.searches import small_spec
from tests.users import as_user

pytestmark = pytest.mark.slow
# Not where a port is listened on: that it is the server's own is told by whose child listens.
forked = pytest.mark.usefixtures("from_the_fork_server")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with one search, whose run MLflow has."""
    folder = empty_database(tmp_path_factory.mktemp("results") / "mlflow.db").parent
    directory = SearchDirectory.create(folder, "books", small_spec(folder).model_copy(update={"tracking": None}))
    directory.record("search", status="started", links={})
    Tracker(directory).deliver()
    return folder


def delivered(results: Path) -> Delivered:
    directory = SearchDirectory(results / "books")
    return Delivered.read(directory.path / DELIVERED, tracking_uri(directory))


@pytest.fixture
def neighbour() -> Iterator[int]:
    """Another user on this machine, by number."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with subprocess.Popen(["sleep", "infinity"], user=5003) as process:
        yield 5003
        process.kill()


def status_at(place: str, *request: str) -> int:
    """What a server answers on a socket."""
    server = http.client.HTTPConnection("localhost")
    server.sock = socket.socket(socket.AF_UNIX)
    server.sock.connect(place)
    server.request(*request, headers={"Content-Type": "application/json"})
    return server.getresponse().status


@forked
def test_where_others_are_on_the_machine_nobody_else_reads_or_writes(results: Path, neighbour: int) -> None:
    with Command("ui", "--results", results) as shown:
        shown.until(lambda: "Ctrl-C" in shown.err, "the address, which comes when the server answers")
        assert "others are on this machine (" in shown.err and str(neighbour) in shown.err
        ssh, options, tunnel, forward, host = shown.out.split()
        assert (ssh, options, tunnel) == ("ssh", "-N", "-L") and "@" in host
        port, _, place = forward.partition(":")
        view = f"/#/experiments/{delivered(results).experiment}/runs?workflowType=machine_learning"
        assert f"http://localhost:{port}{view}&viewStateShareKey=searches\n" in shown.err, "all searches"

        new = '{"name": "theirs"}'
        for request in (["GET", "/api/2.0/mlflow/experiments/get?experiment_id=0"],
                        ["POST", "/api/2.0/mlflow/experiments/create", new]):  # fmt: skip
            theirs = as_user(neighbour, partial(status_at, place, *request))
            assert theirs.startswith("PermissionError") and status_at(place, *request) == 200
        shown.signal(signal.SIGINT)
        assert shown.wait() == 0
    assert not Path(place).parent.exists()


def test_a_taken_port_gives_the_next_and_ctrl_c_ends_the_server(results: Path, neighbour: int) -> None:
    words = ["ui", "books", "--no-browser", "--results", results]
    with taken_port() as port, Command(*words, "--port", port) as shown:
        shown.until(lambda: shown.out.endswith("\n"), "the address, which comes when the server answers")
        address, page = shown.out.strip().removesuffix("?workflowType=machine_learning").split("/#/")
        assert int(address.rpartition(":")[2]) > port
        assert page.startswith("experiments/")
        assert page.endswith(delivered(results).parent)
        assert b"<html" in urllib.request.urlopen(address).read().lower()
        shown.signal(signal.SIGINT)
        assert shown.wait() == 0
        assert f"port {port} is taken" in shown.err
        # Others may be on the machine too: users of the SLURM that runs beside these tests.
        told = re.search(r"\((.*?)\) can change the runs here; without --port they cannot", " ".join(shown.err.split()))
        assert told and str(neighbour) in told[1].split(", ")
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(address)


def test_a_search_with_a_server_of_its_own_needs_no_other(tmp_path: Path) -> None:
    spec = small_spec(tmp_path).model_copy(update={"tracking": "http://user:secret@mlflow.example:5000"})
    SearchDirectory.create(tmp_path, "books", spec)
    shown = run("ui", "books", "--no-browser", "--results", tmp_path)
    assert (shown.code, shown.out) == (0, "http://mlflow.example:5000\n")


def test_nothing_to_show_is_a_sentence(tmp_path: Path) -> None:
    refused = run("ui", "--results", tmp_path)
    assert refused.code == 2 and "there are no searches in" in refused.err


@forked
def test_a_database_of_an_older_version_says_how_to_upgrade(results: Path, tmp_path: Path) -> None:
    SearchDirectory.create(tmp_path, "books", small_spec(tmp_path).model_copy(update={"tracking": None}))
    (tmp_path / "mlflow.db").write_bytes((results / "mlflow.db").read_bytes())
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")  # one of MLflow's first
    refused = run("ui", "--no-browser", "--results", tmp_path)
    assert refused.code == 2
    assert "mlflow db upgrade sqlite:///" in refused.err
    assert "Traceback" not in refused.err


@forked
def test_a_server_that_does_not_start_leaves_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spec = small_spec(tmp_path).model_copy(update={"tracking": "nonsense://"})
    SearchDirectory.create(tmp_path, "books", spec)
    refused = run("ui", "books", "--no-browser", "--port", FIRST, "--results", tmp_path)
    [log] = tmp_path.glob("*.log")
    assert refused.code == 2 and "MLflow's server did not start" in refused.err
    assert str(log) in refused.err and "nonsense" in log.read_text()
