"""`recur-tune repair`: what it says, what it mends, and that nothing else changes."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recur_tune.cli import repair as command
from recur_tune.common.units import rounded
from recur_tune.search.record.directory import EVENTS, STUDY, SearchDirectory
from recur_tune.search.record.recovery import REPORTS
from recur_tune.search.record.state import SearchState
from recur_tune.search.run import preparation
from recur_tune.tracking.mlflow.tracker import Tracker
from tests.cli.run import run
from tests.database import empty_database
from tests.search.run.driving import Driver, changed, price


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> SearchDirectory:
    """A search of two complete trials and a pruned one, which MLflow has too."""
    results = tmp_path_factory.mktemp("results")
    empty_database(results / "mlflow.db")
    directory = changed(results, tracking=f"sqlite:///{results}/mlflow.db")
    with directory.hold_lease():
        directory.record("search", status="started")
        directory.record("reference", values={"flops_per_token": 65.0})
        driver = Driver(directory)
        driver.finish_two()
        bad = driver.ask()
        assert bad
        driver.log.state.trials[bad.config["number"]].costs["flops_per_token"] = 1e9
        driver.report(bad, 50, 90.0)
        driver.log.record("search", status="finished")
        Tracker(directory).deliver()
    return directory


@pytest.fixture
def books(delivered: SearchDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SearchDirectory:
    shutil.copytree(delivered.path, tmp_path / "s")
    monkeypatch.setenv("RECUR_TUNE_RESULTS", str(tmp_path))
    monkeypatch.setattr(preparation, "Prices", lambda workers: price)
    return SearchDirectory(tmp_path / "s")


@pytest.fixture
def without_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_mlflow", lambda directory, settled: [])


def lines(directory: SearchDirectory) -> list[bytes]:
    return (directory.path / EVENTS).read_bytes().splitlines()


def spoil(directory: SearchDirectory, change: Callable[[bytes], bytes], *words: bytes) -> int:
    """Change the first line that has all of the words; its number."""
    found = lines(directory)
    place = next(number for number, line in enumerate(found) if all(word in line for word in words))
    found[place] = change(found[place])
    (directory.path / EVENTS).write_bytes(b"".join(line + b"\n" for line in found))
    return place + 1


def flipped(line: bytes) -> bytes:
    return line[:30] + bytes([line[30] ^ 4]) + line[31:]


def halved(line: bytes) -> bytes:
    return line[: len(line) // 2]


def told(state: SearchState) -> list[tuple[Any, ...]]:
    """All that is to be given back of each trial."""
    found = []
    for one in state.trials.values():
        params = {name: rounded(value) if isinstance(value, float) else value for name, value in one.params.items()}
        validated = [validation.tokens for validation in one.validations]
        found.append((one.number, one.state, one.role, params, one.values(["token_perplexity"]), validated))
    return found


@pytest.mark.usefixtures("without_mlflow")
def test_a_whole_search_is_left_as_it_is(books: SearchDirectory) -> None:
    before = lines(books)
    done = run("repair", "s", "--yes")
    assert done.code == 0 and "nothing is damaged" in done.err
    assert lines(books) == before


@pytest.mark.usefixtures("without_mlflow")
def test_it_asks_before_it_changes_anything_and_says_what_would_be_lost(
    books: SearchDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = spoil(books, halved, b'"kind": "search"', b'"finished"')
    before = lines(books)
    shown = run("repair", "s", "--dry-run")
    assert shown.code == 0 and f"line {number} (a search line): it is no JSON" in shown.out
    assert "put aside, and no trial loses anything" in shown.out
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    refused = run("repair", "s")
    assert refused.code == 2 and "there is no terminal to answer on" in refused.err
    assert lines(books) == before
    assert run("repair", "s", "--yes").code == 0
    assert len(lines(books)) == len(before) - 1
    assert before[number - 1] in (books.path / "events.damaged").read_bytes()


@pytest.mark.usefixtures("without_mlflow")
def test_a_flipped_byte_is_put_right_in_its_place(books: SearchDirectory) -> None:
    before = lines(books)
    spoil(books, flipped, b'"kind": "trial", "trial": 1')
    assert "line" in run("status", "s").err and "repair" in run("front", "s").err
    shown = run("repair", "s", "--yes")
    assert shown.code == 0 and "a single byte is wrong, and is corrected" in shown.out
    assert lines(books) == before
    assert run("status", "s").err.count("damaged") == 0


WAYS = {
    "a trial's first line": (b'"kind": "trial", "trial": 1',),
    "a report": (b'"kind": "report", "trial": 0, "tokens": 50',),
    "an end": (b'"kind": "report", "trial": 1, "tokens": 100',),
    "a pruned trial's end": (b'"kind": "end", "trial": 2',),
    "the reference quality": (b'"values": {"token_perplexity"',),
}


HAS_NOT = {("its folder", "a pruned trial's end"), ("Optuna's study", "a report")}
SOURCES = [(source, lost) for source in ("MLflow", "its folder", "Optuna's study") for lost in WAYS]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "lost"), [one for one in SOURCES if one not in HAS_NOT])
def test_every_book_gives_back_what_it_has(books: SearchDirectory, source: str, lost: str) -> None:
    whole = books.state()
    if source == "its folder":
        write_folders(books)
    if source != "Optuna's study":
        (books.path / STUDY).unlink()
    if source != "its folder":
        for file in books.path.glob(f"trials/*/{REPORTS}"):
            file.unlink()
    spoil(books, halved, *WAYS[lost])
    if source != "MLflow":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(command, "_mlflow", lambda directory, settled: [])
            done = run("repair", "s", "--yes")
    else:
        done = run("repair", "s", "--yes")
    assert done.code == 0 and "Traceback" not in done.err, done
    assert lost == "the reference quality" or source in done.out
    mended = books.state()
    if source == "Optuna's study":  # it has values at full budget alone
        assert [one[:5] for one in told(mended)[:2]] == [one[:5] for one in told(whole)[:2]]
    else:
        assert told(mended) == told(whole)
    assert mended.reference == pytest.approx(whole.reference) and not mended.damaged and not mended.unknown
    assert "nothing is damaged" in run("repair", "s", "--yes").err


def write_folders(directory: SearchDirectory) -> None:
    """The books of the trials' folders, as workers write them."""
    from recur_tune.search.record.recovery import note_report, note_trial

    for trial in directory.state().trials.values():
        folder = directory.trial(trial.number)
        folder.mkdir(exist_ok=True, parents=True)
        note_trial(folder, trial)
        for one in trial.validations:
            end = {"state": "complete"} if trial.state == "complete" and one is trial.validations[-1] else {}
            note_report(folder, {"tokens": one.tokens, "loss": 1.0, "validation": one.metrics, **end})


@pytest.mark.usefixtures("without_mlflow")
def test_a_trial_that_no_book_knows_is_put_aside_and_its_number_not_given_again(books: SearchDirectory) -> None:
    spoil(books, halved, b'"kind": "trial", "trial": 1')
    for file in (*books.path.glob(f"trials/1/{REPORTS}"), books.path / STUDY):
        file.unlink()
    (books.trial(1) / "error.txt").write_text("something")
    for reader in ("status", "front", "report"):
        shown = run(reader, "s")
        assert shown.code == 0 and "the first line of T1 is missing" in shown.err
    assert run("resume", "s").code == 2
    done = run("repair", "s", "--yes")
    assert done.code == 0 and "lost: T1, whose settings no record has" in done.out
    assert (books.path / "trials" / "lost-1" / "error.txt").exists() and not books.trial(1).exists()
    assert list(books.state().trials) == [0, 2]
    another = Driver(books).ask()
    assert another is not None and another.config["number"] == 3
