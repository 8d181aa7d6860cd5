"""Ray on a node that is busy, without a SLURM: a start that was too slow is made again, any other fault is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recur_tune.common.parsing import parse
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm import node
from recur_tune.sites.slurm.folder import SlurmFolder
from recur_tune.sites.slurm.profile import Profile
from tests.search.run.searches import small_spec

TOO_SLOW = "Exception: The current node timed out during startup. This could happen because some of the raylet failed"

# Stands for `ray start`, which cannot be made slow: notes that it was started, and fails as often as it is told.
_STAND_IN = """
import pathlib, sys
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if len(starts.read_text()) <= int(sys.argv[2]):
    sys.exit(sys.argv[3])
"""


@pytest.fixture
def run_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], tuple[int, int]]:
    """Runs Ray on a node where its start fails so often, with these words: its exit code, and how often it started."""
    folder = SlurmFolder(SearchDirectory.create(tmp_path / "results", "books", small_spec(tmp_path)))
    folder.create(parse(Profile, {}))
    monkeypatch.setattr(node, "own_scratch", lambda parent: tmp_path / "scratch")
    never_closed, _ = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(never_closed))
    starts = tmp_path / "starts"

    def run(failures: int, words: str) -> tuple[int, int]:
        stand_in = [sys.executable, "-c", _STAND_IN, str(starts), str(failures), words]
        monkeypatch.setattr(node, "_ray_start", lambda *_: (stand_in, None))
        code = node.run_ray(folder, 7, "n1", "127.0.0.1:6379")
        return code, len(starts.read_text())

    return run


def test_a_start_that_was_too_slow_is_made_again(
    run_ray: Callable[[int, str], tuple[int, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_ray(1, TOO_SLOW) == (0, 2)
    said = capfd.readouterr()
    assert "n1: Ray did not start within its own time limit; trying again." in said.out
    assert TOO_SLOW in said.err, "and whoever reads the log sees why"


def test_a_node_that_is_always_too_slow_is_given_up(run_ray: Callable[[int, str], tuple[int, int]]) -> None:
    assert run_ray(99, TOO_SLOW) == (1, 3)


def test_another_fault_is_not_tried_again(
    run_ray: Callable[[int, str], tuple[int, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_ray(1, "Address already in use") == (1, 1)
    assert "Address already in use" in capfd.readouterr().err
