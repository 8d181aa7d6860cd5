"""A search as a Python function, without Ray: in place of the driver what it does to the log and to its listener."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recur_tune
from recur_tune.api import result
from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.knowledge import knowledge_of
from recur_tune.search.run.listener import ProgressListener
from recur_tune.training.interrupt import stop_requests
from tests.cli.books import make_books

Driver = Callable[[SearchDirectory, ProgressListener], None]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that runs a search by a given driver."""
    monkeypatch.setattr(result, "check_runnable", lambda spec, address: None)

    def run(driver: Driver, **options: Any) -> Any:
        def run_search(directory: SearchDirectory, outputs: Any, address: Any, listener: Any, change: Any) -> None:
            with directory.hold_lease():
                driver(directory, listener)

        monkeypatch.setattr(result, "run_search", run_search)
        space = {"space": {"window": [200, 300]}, "budget": {"trials": 3}}
        return recur_tune.search(**{"space": space, "name": "mine", "results": tmp_path, **options})

    return run


def ends(directory: SearchDirectory, listener: ProgressListener, status: str = "finished") -> None:
    listener.stage("starting Ray …")
    directory.record("search", status="started")
    directory.record("notice", text="the disk is nearly full")
    directory.record("search", status=status)


def test_ctrl_c_is_raised_once_the_search_is_paused(
    search: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(directory: SearchDirectory, listener: ProgressListener) -> None:
        with stop_requests(listener.pausing) as asked:
            signal.raise_signal(signal.SIGINT)
            assert asked()
        ends(directory, listener, "paused")

    with pytest.raises(KeyboardInterrupt, match="mine is paused, and every trial saved"):
        search(interrupted)
    assert "pausing: each trial saves a checkpoint" in capsys.readouterr().err
    opened = recur_tune.open_search("mine", results=tmp_path)
    assert opened.status == "paused" and opened.front.empty


def test_progress_is_told_in_lines_unless_it_shall_not(
    search: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(ends).status == "finished"
    told = capsys.readouterr()
    assert told.out == "" and told.err.splitlines() == ["starting Ray …", "  note: the disk is nearly full"]
    search(ends, progress=False)
    assert capsys.readouterr().err == ""


def test_a_search_is_opened_again_by_its_name(tmp_path: Path) -> None:
    make_books(tmp_path)
    opened = recur_tune.open_search("books", results=tmp_path)
    assert opened.status == "interrupted" and list(opened.front["trial"]) == ["T1", "T0"]
    with pytest.raises(UserError, match="there is no search 'boks'"):
        recur_tune.open_search("boks", results=tmp_path)


def test_the_front_is_a_table_of_plain_numbers(tmp_path: Path) -> None:
    make_books(tmp_path)
    books = SearchDirectory(tmp_path / "books")
    books.record("report", trial=1, tokens=80_000, untrained={"perplexity": 60.0, "loss": 4.1})
    front = recur_tune.open_search("books", results=tmp_path).front
    assert front["untrained_perplexity"][0] == 60.0 and list(front["untrained_loss"].isna()) == [False, True]
    assert not [name for name in front if any(isinstance(cell, dict) for cell in front[name])]


def test_first_trials_that_a_setting_excludes_are_left_out_and_named(
    search: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"space": "quickstart", "settings": {"space.window": [24, 96]}}
    assert len(search(ends, **options).directory.spec.first) == 2
    [told] = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert told.startswith(
        "  note: first: of the 4 trials that quickstart begins with, 2 are left out, which the changed"
    )
    search(ends, progress=False, **options)
    assert capsys.readouterr().err == ""


def test_a_search_learns_from_earlier_ones_and_is_continued_without_them(
    search: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_books(tmp_path)
    space = {"space": {"window": [200, 300]}, "budget": {"trials": 3}}
    found = search(ends, space=space, from_="books")
    assert [one.name for one in knowledge_of(found.directory).searches] == ["books"]
    assert "books: the search expects from" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "books")
    again = search(ends, space=space, from_=["books"])
    assert knowledge_of(again.directory) == knowledge_of(found.directory)
