"""What a disk can do to a search: be full, for real, or flip a bit of a checkpoint. Neither fails a trial."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from recur_tune.cluster.ray_cluster import Cluster
from recur_tune.errors import Paused
from recur_tune.running.run import run_search
from recur_tune.searching.directory import SearchDirectory
from recur_tune.trial.run_folder import RESUME
from tests.disks import mounted_disk
from tests.running.searches import ALIKE, ONE_AT_A_TIME, assert_settled, events_of, small_spec
from tests.training.runs import flip
from tests.waiting import until

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


@pytest.mark.parametrize("room", [4096, 128 * 1024], ids=["for no line of the log", "for no checkpoint"])
def test_a_full_disk_pauses_the_search_and_fails_no_trial(room: int, cluster: Cluster, world: Path, disk: Path) -> None:
    spec = small_spec(world, budget__trials=3, **ALIKE, resources__cpus=ONE_AT_A_TIME)
    directory = SearchDirectory.create(disk, "full", spec)
    ballast = fill(disk, room)
    with pytest.raises(Paused, match="the disk is full") as caught:
        run_search(directory)
    assert caught.value.exit_code == 75
    assert "\n" not in str(caught.value)
    state = directory.state()
    assert not list(state.in_state("failed", "infeasible"))
    assert state.status != "finished"
    ballast.unlink()
    state = run_search(directory)
    assert state.status == "finished"
    assert state.trained == 3 and not list(state.in_state("failed"))
    assert_settled(directory)


def test_a_damaged_checkpoint_is_a_line_in_the_log_and_no_failed_trial(
    cluster: Cluster, world: Path, tmp_path: Path
) -> None:
    budget = {"budget__trials": 1, "budget__tokens": 12_000, "budget__rungs": 4, "budget__reduction": 2}
    spec = small_spec(world, **budget, **ALIKE, resources__cpus=ONE_AT_A_TIME)
    directory = SearchDirectory.create(tmp_path, "damaged", spec)

    def stop_midway() -> None:
        until(lambda: any(one.get("validation") for one in events_of(directory, "report")), "a validation", pause=0.02)
        directory.request_stop()

    stopper = threading.Thread(target=stop_midway, daemon=True)
    stopper.start()
    [paused] = run_search(directory).in_state("paused")
    stopper.join()
    for file in (directory.trial(paused.number) / RESUME).iterdir():
        flip(file)
    state = run_search(directory)
    assert [trial.state for trial in state.trials.values()] == ["complete"]
    [notice] = events_of(directory, "notice")
    assert notice["trial"] == paused.number and "begins anew" in notice["text"]
    assert_settled(directory)
