"""A search whose folder is moved while it runs: one sentence, exit code 75, and nothing at the old place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recur_tune.cluster.connection import DASHBOARD
from recur_tune.search.record.directory import SearchDirectory
from tests.command import Command
from tests.search.run.searches import ALIKE, ONE_AT_A_TIME, small_spec, write_space

pytestmark = pytest.mark.ray


def test_a_search_whose_folder_is_moved_ends_in_one_sentence(world: Path, tmp_path: Path) -> None:
    budget = {"budget__tokens": 16_000, "budget__trials": 2, "budget__rungs": 3}
    spec = small_spec(world, **budget, **ALIKE, space__learning_rate=0.004, resources__cpus=ONE_AT_A_TIME)
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    elsewhere.mkdir()
    here, there = SearchDirectory(results / "s"), SearchDirectory(elsewhere / "t")
    words = ["search", write_space(tmp_path / "space.yaml", spec), "--name", "s", "--results", results]
    with Command(*words, env=os.environ | {"OMP_NUM_THREADS": "1", DASHBOARD: "off"}) as search:
        search.until(lambda: here.path.exists() and any(t.validations for t in here.state().trials.values()), "a trial")
        here.path.rename(there.path)
        assert search.wait() == 75, search.err
        told = [line for line in search.err.splitlines() if line.startswith("recur-tune: ")]
    assert told == [
        f"recur-tune: name: {here.path} was moved to {there.path} while its search ran; nothing finished is lost, and "
        f"`recur-tune resume t --results {elsewhere}` continues it there."
    ]
    assert "Traceback" not in search.err + search.out and "another process" not in search.err
    assert not here.path.exists(), [*here.path.rglob("*")]
    assert there.state().trials and not list(there.state().in_state("failed"))
    assert not there.is_running, "its lease is free for the resume"
