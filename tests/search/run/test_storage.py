"""What a disk can do to a search: be full, for real. It fails no trial."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from recur_tune.api.outputs import OUTPUTS
from recur_tune.cluster.connection import Cluster
from recur_tune.common.errors import Paused
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.run.driver import run_search
from tests.disks import mounted_disk
from tests.search.run.searches import ALIKE, ONE_AT_A_TIME, assert_settled, small_spec

pytestmark = pytest.mark.ray


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "40m") as disk:
        yield disk


def fill(disk: Path, room: int) -> Path:
    """Leave so many bytes."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - room)
    return ballast


def test_a_full_disk_pauses_the_search_and_fails_no_trial(cluster: Cluster, world: Path, disk: Path) -> None:
    spec = small_spec(world, budget__trials=3, **ALIKE, resources__cpus=ONE_AT_A_TIME)
    directory = SearchDirectory.create(disk, "full", spec)
    for room in (4096, 128 * 1024):  # for no line of the log, and for no checkpoint
        ballast = fill(disk, room)
        with pytest.raises(Paused, match="the disk is full") as caught:
            run_search(directory, OUTPUTS)
        assert caught.value.exit_code == 75
        assert "\n" not in str(caught.value)
        state = directory.state()
        assert not list(state.in_state("failed", "infeasible"))
        assert state.status != "finished"
        ballast.unlink()
    state = run_search(directory, OUTPUTS)
    assert state.status == "finished"
    assert state.trained == 3 and not list(state.in_state("failed"))
    assert_settled(directory)
