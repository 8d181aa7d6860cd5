"""A SLURM whose controller cannot be reached: SLURM's own commands say so, and ours in one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.folder import SCRIPT, SlurmFolder
from recur_tune.sites.slurm.profile import Profile
from tests.cli.books import make_books
from tests.cli.run import run
from tests.ports import free_port

pytestmark = pytest.mark.skipif(shutil.which("squeue") is None, reason="SLURM's commands are not installed")


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SearchDirectory:
    """A search that was submitted, on a login node whose controller is down."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        f"ClusterName=gone\nSlurmctldHost=gone(127.0.0.1)\nSlurmctldPort={free_port()}\nMessageTimeout=1\n"
        "NodeName=n1 CPUs=1\nPartitionName=main Nodes=n1\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setenv("RECUR_TUNE_RESULTS", str(tmp_path / "results"))
    make_books(tmp_path / "results")
    directory = SearchDirectory.open(tmp_path / "results", "books")
    folder = SlurmFolder(directory)
    folder.create(parse(Profile, {}))
    (folder.path / SCRIPT).write_text("#!/bin/bash\n")
    folder.note(7, "search", by="user", nodes=1)
    return directory


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["search", "--name", "new", "--slurm", "cpu-only"], "sinfo"),
        (["resume", "books", "--slurm", "--trials", "20"], "squeue"),
        (["grow", "books"], "squeue"),
        (["tunnel", "books"], "squeue"),
        (["stop", "books"], "squeue"),
        (["cluster", "check", "--slurm", "cpu-only"], "sinfo"),
    ],
)
def test_a_command_that_needs_it_is_refused_in_one_sentence(
    books: SearchDirectory, words: list[str], program: str
) -> None:
    refused = run(*words)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.count("\n") == 1 and f"slurm: {program} cannot reach SLURM's controller" in refused.err
    assert not (books.path.parent / "new").exists()


def test_sbatch_and_scancel_say_the_same(books: SearchDirectory) -> None:
    for ask in (lambda: queue.submit(SlurmFolder(books).path / SCRIPT), lambda: queue.cancel(7)):
        with pytest.raises(UserError, match="cannot reach SLURM's controller; try again later"):
            ask()


def test_a_search_is_shown_without_it(books: SearchDirectory) -> None:
    shown, logs = run("status", "books"), run("logs", "books")
    assert (shown.code, logs.code) == (0, 0)
    assert "its jobs are not known: slurm: squeue cannot reach SLURM's controller" in shown.out + shown.err
    assert "job 7; its log is empty; slurm: squeue cannot reach" in " ".join(logs.err.split())
