"""A search through a bad night, as commands in processes of their own: whatever ends them, a resume goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from recur_tune.searching.directory import SearchDirectory
from tests.searching.searches import assert_settled, events_of, small_spec, write_space

pytestmark = pytest.mark.ray

_LIMIT = 240  # seconds that nothing here should need; a search that hangs fails instead


class Night:
    """A search that is started again and again, each time in a new process with a Ray cluster of its own."""

    def __init__(self, folder: Path, space: Path) -> None:
        self.results, self.space = folder, space
        self.directory = SearchDirectory(folder / "night")
        self.process: subprocess.Popen[str] | None = None
        self.seen = 0

    def begin(self) -> None:
        known = self.directory.path.exists()
        self.seen = len(self.events()) if known else 0
        words = ["resume", "night"] if known else ["search", str(self.space), "--name", "night"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "recur_tune.cli.main", *words, "--results", str(self.results)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # Ray's own patience with a cluster that is gone is a minute.
            env=os.environ | {"OMP_NUM_THREADS": "1", "RAY_gcs_rpc_server_reconnect_timeout_s": "5"},
        )  # fmt: skip

    def events(self) -> list[dict[str, Any]]:
        return [event for event, _ in self.directory.events()]

    def until(self, happened: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait for something to stand in what this process wrote to the log."""
        assert self.process is not None
        deadline = time.monotonic() + _LIMIT
        while not (self.directory.path.exists() and happened(self.events()[self.seen :])):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "it took too long"
            time.sleep(0.05)

    def until_midway(self) -> None:
        """Some trial has a checkpoint and is still training."""
        self.until(lambda events: any(e.get("validation") and "state" not in e for e in events))

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @contextmanager
    def frozen_trials(self) -> Iterator[None]:
        """Trials that have reported do not get any further meanwhile, nor hear of anything."""
        told = [event["worker"] for event in self.events()[self.seen :] if "worker" in event]
        workers = [psutil.Process(int(pid)) for pid in {worker.partition(":")[2] for worker in told}]
        assert workers
        for worker in workers:
            worker.suspend()
        try:
            yield
        finally:
            for worker in workers:
                with suppress(psutil.NoSuchProcess):  # its cluster took it along
                    worker.resume()

    def wait(self) -> tuple[int, str]:
        """The exit code, and what was printed on stderr."""
        assert self.process is not None
        _, said = self.process.communicate(timeout=_LIMIT)
        return self.process.returncode, said


@pytest.fixture
def night(world: Path, tmp_path: Path) -> Iterator[Night]:
    # Long enough to be met midway, and without early stops, so that every trial has an end to be lost.
    spec = small_spec(world, budget__tokens=80_000, budget__trials=4, budget__rungs=3, space__learning_rate=0.004)
    spec = spec.model_copy(update={"budget": spec.budget.model_copy(update={"reduction": 2})})
    night = Night(tmp_path / "results", write_space(tmp_path / "space.yaml", spec))
    yield night
    if night.process is not None:
        night.process.kill()  # its cluster ends with it


def test_nothing_that_ends_a_search_loses_a_finished_trial(night: Night) -> None:
    night.begin()
    night.until_midway()
    night.signal(signal.SIGTERM)  # as Ctrl-C once: trials save themselves
    code, said = night.wait()
    assert code == 130
    assert "go on with:  recur-tune resume night" in said
    assert "Traceback" not in said
    assert "SIGTERM" not in said, "Ray prints a stack where the signal is its own"
    assert not list(night.directory.state().in_state("running"))
    paused = list(night.directory.state().in_state("paused"))
    assert any(trial.tokens > 0 for trial in paused)
    assert all((night.directory.trial(trial.number) / "resume").is_dir() for trial in paused if trial.tokens)

    night.begin()
    night.until_midway()
    with night.frozen_trials():  # so that they cannot have saved themselves before the second
        night.signal(signal.SIGINT)
        night.until(lambda events: night.directory.stop_requested)  # the first has been heard
        night.signal(signal.SIGINT)  # twice: at once
        code, said = night.wait()
    assert code == 130
    assert "ended at once; go on with:  recur-tune resume night" in said

    night.begin()
    night.until_midway()
    night.signal(signal.SIGKILL)  # the driver is gone, and its cluster with it
    night.wait()

    night.begin()
    night.until_midway()
    assert night.process is not None
    for child in psutil.Process(night.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # the raylet takes its workers along
            if child.name() in ("gcs_server", "raylet"):
                child.kill()  # the cluster is gone under the driver
    code, said = night.wait()
    assert code != 0
    assert "Traceback" not in said

    night.begin()
    code, said = night.wait()
    assert code == 0, said
    state = night.directory.state()
    assert state.status == "finished"
    assert state.trained == 4
    assert_settled(night.directory)


def test_stop_from_elsewhere_saves_and_frees_the_search(night: Night) -> None:
    night.begin()
    night.until_midway()
    stop = [sys.executable, "-m", "recur_tune.cli.main", "stop", "night", "--results", str(night.results)]
    stopped = subprocess.run(stop, capture_output=True, text=True, timeout=_LIMIT)
    assert stopped.returncode == 0, stopped.stderr
    assert "recur-tune resume night" in stopped.stderr
    code, _ = night.wait()
    assert code == 130
    assert list(night.directory.state().in_state("paused"))
    assert not night.directory.is_running
    again = subprocess.run(stop, capture_output=True, text=True, timeout=_LIMIT)
    assert again.returncode == 2
    status = [sys.executable, "-m", "recur_tune.cli.main", "status", "night", "--results", str(night.results), "--json"]
    summary = json.loads(subprocess.run(status, capture_output=True, text=True, timeout=_LIMIT, check=True).stdout)
    assert summary["status"] == "stopped"
    assert events_of(night.directory, "search")[-1]["status"] == "stopped"
