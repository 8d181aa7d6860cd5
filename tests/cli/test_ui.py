"""`recur-tune ui`: a real MLflow server over a results folder, found by its address and ended by Ctrl-C."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path

import pytest

from recur_tune.cli import ui
from recur_tune.errors import UserError
from recur_tune.localhost import free_ports_from
from recur_tune.searching.directory import SearchDirectory
from recur_tune.tracking.mlflow import Tracker
from tests.ports import FIRST, taken_port
from tests.searching.searches import small_spec


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with one search, whose run MLflow has."""
    folder = tmp_path_factory.mktemp("results")
    directory = SearchDirectory.create(folder, "books", small_spec(folder).model_copy(update={"tracking": None}))
    directory.record("search", status="started", links={})
    Tracker(directory).deliver()
    return folder


def command(*words: str, results: Path) -> list[str]:
    return [sys.executable, "-m", "recur_tune.cli.main", "ui", *words, "--no-browser", "--results", str(results)]


@contextmanager
def shown(*words: str, results: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command while it shows something, and the address that it printed."""
    process = subprocess.Popen(
        command(*words, results=results), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        url = process.stdout.readline().strip()  # which comes when the server answers
        assert url, process.stderr.read()
        yield process, url
    finally:
        process.terminate()  # it takes its server along
        process.communicate(timeout=60)


def test_a_taken_port_gives_the_next_and_ctrl_c_ends_the_server(results: Path) -> None:
    with taken_port() as port, shown("books", "--port", str(port), results=results) as (process, url):
        address, page = url.removesuffix("?workflowType=machine_learning").split("/#/")
        assert int(address.rpartition(":")[2]) > port
        assert page.startswith("experiments/")
        assert page.endswith(Tracker(SearchDirectory(results / "books"))._delivered.parent)
        assert b"<html" in urllib.request.urlopen(address).read().lower()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0
        assert f"port {port} is taken" in said
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(address)


def test_a_port_that_is_taken_while_the_server_starts_gives_the_next(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The probe looks a moment too early: the port is somebody's before MLflow wants it."""
    with taken_port() as port:
        probed_too_early = chain([port], free_ports_from(port))
        monkeypatch.setattr("recur_tune.tracking.server.free_ports_from", lambda wanted: probed_too_early)
        monkeypatch.setattr(ui, "stop_requests", lambda: nullcontext(lambda: True))  # as soon as it is shown
        ui._serve(f"sqlite:///{results / 'mlflow.db'}", port, "", no_browser=True)
    assert f"port {port} is taken" in capsys.readouterr().err


def test_without_a_name_it_shows_the_runs_of_all_searches(results: Path) -> None:
    with shown(results=results) as (_, url):
        experiment = Tracker(SearchDirectory(results / "books"))._delivered.experiment
        assert url.endswith(f"/#/experiments/{experiment}/runs?workflowType=machine_learning")


def test_a_search_with_a_server_of_its_own_needs_no_other(tmp_path: Path) -> None:
    spec = small_spec(tmp_path).model_copy(update={"tracking": "http://user:secret@mlflow.example:5000"})
    SearchDirectory.create(tmp_path, "books", spec)
    ran = subprocess.run(command("books", results=tmp_path), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0
    assert ran.stdout == "http://mlflow.example:5000\n"


def test_nothing_to_show_is_a_sentence(tmp_path: Path) -> None:
    ran = subprocess.run(command(results=tmp_path), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "there are no searches in" in ran.stderr


def test_a_database_of_an_older_version_says_how_to_upgrade(results: Path, tmp_path: Path) -> None:
    SearchDirectory.create(tmp_path, "books", small_spec(tmp_path).model_copy(update={"tracking": None}))
    (tmp_path / "mlflow.db").write_bytes((results / "mlflow.db").read_bytes())
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")  # one of MLflow's first
    ran = subprocess.run(command(results=tmp_path), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2
    assert "mlflow db upgrade sqlite:///" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_server_that_does_not_start_leaves_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError, match="MLflow's server did not start") as refused:
        ui._serve("nonsense://", FIRST, "", no_browser=True)
    [log] = tmp_path.glob("*.log")
    assert str(log) in str(refused.value) and "nonsense" in log.read_text()
