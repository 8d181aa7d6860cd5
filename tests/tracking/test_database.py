"""The database of a results folder: who writes to it, how, and what is done when it is damaged."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recur_tune.search.record import lease
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.tracking.mlflow import database
from recur_tune.tracking.mlflow.database import one_writer
from recur_tune.tracking.mlflow.tracker import DeliveryFailed, Tracker
from tests.cli.run import run
from tests.command import Command
from tests.tracking.tracked import Seen, complete, rich_search, search

pytestmark = pytest.mark.slow


def delivered(directory: SearchDirectory) -> Any:
    """What MLflow has of a search, but for the runs' own names, which are new in a new database."""
    seen = Seen(directory)
    runs = [seen.parent, *(run for _, run in sorted(seen.children().items()))]
    return [
        (
            run.info.run_name, run.info.status, run.info.start_time, run.info.end_time, run.data.params,
            {name: seen.history(run, name) for name in run.data.metrics},
            {name: value for name, value in run.data.tags.items() if not name.startswith("mlflow.")},
        )
        for run in runs
    ]  # fmt: skip


def test_a_damaged_database_is_made_anew_from_the_logs(results: Path) -> None:
    many, one = rich_search(results), search(results, "second")
    complete(one, 0, 20.0)
    for directory in (many, one):
        Tracker(directory).deliver()
    before = [delivered(many), delivered(one)]
    with (results / "mlflow.db").open("rb+") as file:
        file.seek(4096)
        file.write(b"\xff" * 200_000)
    complete(one, 1, 19.0)
    refused = run("track", "second", "--results", results)
    assert refused.code == 2 and "it is damaged, and `recur-tune track --rebuild` rebuilds it" in refused.err

    with Command("track", "--rebuild", "--results", results) as rebuilt:  # this process still has the old file open
        assert rebuilt.wait() == 0, rebuilt.err
    anew = shutil.copytree(results, results.parent / f"{results.name}-seen")
    [aside] = results.glob(".mlflow-2*")
    assert b"\xff" * 1000 in (aside / "mlflow.db").read_bytes(), "what was there is kept"
    assert delivered(SearchDirectory(anew / many.name)) == before[0]
    assert len(delivered(SearchDirectory(anew / one.name))) == len(before[1]) + 1, "and what it had missed has arrived"
    assert [found.name for found in results.glob("[!.]*")].count("mlflow.db") == 1


def test_what_runs_is_not_rebuilt_under_its_feet(results: Path) -> None:
    directory = search(results)
    before = (results / "mlflow.db").read_bytes()
    with directory.hold_lease():
        refused = run("track", "--rebuild", "--results", results)
    assert refused.code == 2 and "first is running" in refused.err
    for words in (["first", "--rebuild"], []):
        assert run("track", *words, "--results", results).code == 2
    assert (results / "mlflow.db").read_bytes() == before


def test_one_search_at_a_time_writes(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = search(results)
    monkeypatch.setattr(database, "_PATIENCE", 0.3)
    with one_writer(Tracker(directory).uri), pytest.raises(DeliveryFailed, match="another process is writing to"):
        Tracker(directory).deliver()
    tracker = Tracker(directory)
    assert tracker.deliver()
    with one_writer(tracker.uri):
        assert tracker.deliver(), "who has nothing to say takes no turn"


def test_a_server_sees_to_its_writers_itself(tmp_path: Path) -> None:
    with one_writer("http://mlflow.example:5000"), one_writer("http://mlflow.example:5000"):
        assert list(tmp_path.iterdir()) == []


def test_a_write_ahead_log_is_left(results: Path) -> None:
    directory = search(results)
    with closing(sqlite3.connect(results / "mlflow.db")) as file:
        assert file.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    Tracker(directory).deliver()
    with closing(sqlite3.connect(results / "mlflow.db")) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert not lease.is_held(results / ".mlflow-lease")
