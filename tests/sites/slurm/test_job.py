"""How a job judges the end of its search, without a SLURM: whose fault it was decides whether the search goes on."""

from __future__ import annotations

import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.search.record.confirmation import ConfirmationPlan
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.process_identity import ProcessIdentity
from recur_tune.sites.slurm import job
from recur_tune.sites.slurm.folder import Head, SlurmFolder
from recur_tune.sites.slurm.job import Signals, _run_search
from recur_tune.sites.slurm.profile import Profile
from tests.ports import free_port, taken_port
from tests.search.run.searches import small_spec
from tests.waiting import until

# Each is a command in a process of its own.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("from_the_fork_server")]


@pytest.fixture
def folder(tmp_path: Path) -> SlurmFolder:
    made = SlurmFolder(SearchDirectory.create(tmp_path / "results", "books", small_spec(tmp_path)))
    made.create(parse(Profile, {}))
    return made


def test_a_cluster_that_is_gone_is_nobodys_fault(folder: SlurmFolder, capfd: pytest.CaptureFixture[str]) -> None:
    head = Head(7, "n1", f"127.0.0.1:{free_port()}", client=1, dashboard=None)
    assert _run_search(folder, head, Signals()) not in (0, 130, UserError.exit_code)
    said = capfd.readouterr()
    assert "nothing answers at" in said.err
    assert f"Ray has ended; what it said last is in {folder.ray_logs(7, 'n1')}" in said.out + said.err


def test_a_search_that_slurm_kills_is_free_on_every_machine(
    folder: SlurmFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the search a process that holds its lock and hears of nothing."""
    held, deaf = tmp_path / "held", Signals()
    program = (
        "import pathlib, signal, sys, time; from recur_tune.search.record.directory import SearchDirectory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"with SearchDirectory(pathlib.Path({str(folder.search.path)!r})).hold_lease():\n"
        f"    pathlib.Path({str(held)!r}).touch(); time.sleep(900)"
    )
    start = subprocess.Popen
    monkeypatch.setattr(job.subprocess, "Popen", lambda words, **options: start([words[0], "-c", program]))
    monkeypatch.setattr(job, "_SECONDS_TO_SAVE", 0.1)

    def end_it() -> None:
        until(held.exists, "it holds the lock")
        deaf(signal.SIGTERM, None)

    threading.Thread(target=end_it, daemon=True).start()
    assert _run_search(folder, Head(7, "n1", "127.0.0.1:1", client=1), deaf) == -signal.SIGKILL
    there = replace(ProcessIdentity.current(), host="login", machine="another", boot="another")
    monkeypatch.setattr(ProcessIdentity, "current", classmethod(lambda cls: there))
    assert not folder.search.is_running


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([{"kind": "search", "status": "started"}, {"kind": "search", "status": "paused"}], 0),
        ([{"kind": "search", "status": "started"}], UserError.exit_code),  # its storage took no last line
    ],
)
def test_a_search_that_was_asked_to_pause_is_told_from_one_that_cannot_write(
    folder: SlurmFolder, monkeypatch: pytest.MonkeyPatch, events: list[dict[str, str]], code: int
) -> None:
    for event in events:
        folder.search.record(**event)
    start, program = subprocess.Popen, "raise SystemExit(75)"
    monkeypatch.setattr(job.subprocess, "Popen", lambda words, **options: start([words[0], "-Sc", program]))
    with taken_port() as port:
        assert _run_search(folder, Head(7, "n1", f"127.0.0.1:{port}", client=1), Signals()) == code


def test_a_base_that_is_gone_is_the_users_fault(folder: SlurmFolder, capfd: pytest.CaptureFixture[str]) -> None:
    with taken_port() as port:
        head = Head(7, "n1", f"127.0.0.1:{port}", client=1, dashboard=None)
        assert _run_search(folder, head, Signals()) == UserError.exit_code
    assert "base" in capfd.readouterr().err


def test_an_allocation_runs_what_was_asked_for(folder: SlurmFolder, capfd: pytest.CaptureFixture[str]) -> None:
    folder.note_submitted(7, 1, ConfirmationPlan(2).command)
    with taken_port() as port:
        head = Head(7, "n1", f"127.0.0.1:{port}", client=1, dashboard=None)
        assert _run_search(folder, head, Signals()) == UserError.exit_code
    assert "there is no front to confirm" in capfd.readouterr().err
    folder.note_submitted(8, 1)
    assert folder.command == ["resume"], "who asks next for the search itself gets that"
