"""A search's allocations in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm.folder import SlurmFolder
from recur_tune.sites.slurm.metrics import Allocations
from recur_tune.sites.slurm.queue import QueuedJob
from recur_tune.tracking.prometheus.metrics import METRICS, Sample


def job(number: int, state: str, left: str) -> QueuedJob:
    return QueuedJob(number, state, "None", "n1", left, "N/A")


def test_running_and_waiting_allocations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job(7, "RUNNING", "1-01:00:10"), job(8, "PENDING", "2:00:00"), job(9, "RUNNING", "UNLIMITED")]
    asked = []
    monkeypatch.setattr(SlurmFolder, "living_jobs", lambda self: asked.append(1) or [("search", one) for one in jobs])
    ask = Allocations(SlurmFolder(SearchDirectory(tmp_path)))
    expected = [
        Sample("allocations", 2, ("running",)),
        Sample("allocations", 1, ("waiting",)),
        Sample("allocation_seconds_left", 25 * 3600 + 10, ("7",)),
    ]
    ask()  # does not wait for the queue
    ask.thread.join()
    assert ask() == expected
    assert len(asked) == 1, "everybody asks the queue; twice in a row is once too often"
    assert {sample.name for sample in expected} <= set(METRICS)


def test_a_queue_that_does_not_answer_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(folder: SlurmFolder) -> None:
        raise UserError("slurm: squeue did not answer within a minute; is the controller up?")

    monkeypatch.setattr(SlurmFolder, "living_jobs", silent)
    ask = Allocations(SlurmFolder(SearchDirectory(tmp_path)))
    ask()
    ask.thread.join()
    assert ask() == []
