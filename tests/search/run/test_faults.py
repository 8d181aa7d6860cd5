"""A search through a bad night, as commands in processes of their own: whatever ends them, a resume goes on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from recur_tune.cluster.connection import DASHBOARD
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.training import RESUME
from tests.cli.run import run
from tests.command import Command
from tests.search.run.searches import ALIKE, ONE_AT_A_TIME, assert_settled, events_of, held, small_spec, write_space
from tests.training.runs import flip
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.ray


class Night:
    """A search that is started again and again, each time in a new process with a Ray cluster of its own."""

    def __init__(self, folder: Path, space: Path) -> None:
        self.results, self.space = folder, space
        self.directory = SearchDirectory(folder / "night")
        self.process: Command | None = None
        self.seen = 0

    def begin(self, *more: object) -> Command:
        known = self.directory.path.exists()
        self.seen = len(self.events()) if known else 0
        words = ["resume", "night"] if known else ["search", self.space, "--name", "night"]
        env = os.environ | {"OMP_NUM_THREADS": "1", DASHBOARD: "off"}
        self.process = Command(*words, *more, "--results", self.results, env=env)
        return self.process

    def events(self) -> list[dict[str, Any]]:
        return [event for event, _ in self.directory.events()]

    def until(self, happened: Callable[[list[dict[str, Any]]], bool], what: str) -> None:
        """Wait for something to stand in what this process wrote to the log."""
        assert self.process is not None
        self.process.until(lambda: self.directory.path.exists() and happened(self.events()[self.seen :]), what)

    def is_midway(self) -> bool:
        """Some trial has a checkpoint and is still training."""
        return any(event.get("validation") and "state" not in event for event in self.events()[self.seen :])

    def until_midway(self) -> None:
        """Wait for that."""
        self.until(lambda _: self.is_midway(), "a validation midway")

    @contextmanager
    def frozen_trials(self) -> Iterator[None]:
        """Trials that have reported do not get any further meanwhile, nor hear of anything."""
        workers = {event["worker"] for event in self.events()[self.seen :] if "worker" in event}
        assert workers
        with ExitStack() as until_the_end:
            for worker in workers:
                until_the_end.enter_context(held(worker))
            yield


@pytest.fixture
def night(world: Path, tmp_path: Path) -> Iterator[Night]:
    # Trials long enough to be met midway, more than any machine has finished before the last fault, and without early
    # stops, so that every trial has an end to be lost; one at a time, so that one is known to be under way.
    budget = {"budget__tokens": 16_000, "budget__trials": 25, "budget__rungs": 3}
    spec = small_spec(world, **budget, **ALIKE, space__learning_rate=0.004, resources__cpus=ONE_AT_A_TIME)
    spec = spec.model_copy(update={"budget": spec.budget.model_copy(update={"reduction": 2})})
    night = Night(tmp_path / "results", write_space(tmp_path / "space.yaml", spec))
    yield night
    if night.process is not None:
        night.process.signal(signal.SIGKILL)  # its cluster ends with it


def kill_children(search: Command, *names: str) -> None:
    """Kill processes of the search's own cluster."""
    for child in psutil.Process(search.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # the raylet takes its workers along
            if child.name() in names:
                child.kill()


def assert_lost_its_cluster(night: Night, search: Command) -> None:
    """It ends by itself, in order and with one sentence."""
    assert search.wait() == 75, f"{night.directory.state().status}: {search.out}{search.err}"
    assert "the Ray cluster at" in search.err.splitlines()[-1] and "`recur-tune resume night" in search.err
    assert "Traceback" not in search.err
    assert night.directory.state().status == "paused"


def test_nothing_that_ends_a_search_loses_a_finished_trial(night: Night) -> None:
    search = night.begin()
    night.until_midway()
    os.killpg(search.pid, signal.SIGTERM)  # as Ctrl-C once: trials save themselves
    search.signal(signal.SIGTERM)  # `timeout` sends it to the whole process group, and to its command once more
    assert search.wait() == 75, "a script does not go on as if the search had ended"
    assert "pausing: each trial saves a checkpoint" in search.err, "told when it was heard"
    assert "paused, and every trial saved" in search.err
    assert "continue with:  recur-tune resume night" in search.err
    assert "Traceback" not in search.err
    assert "SIGTERM" not in search.err, "Ray prints a stack where the signal is its own"
    assert not list(night.directory.state().in_state("running"))
    paused = list(night.directory.state().in_state("paused"))
    assert any(trial.tokens > 0 for trial in paused)
    assert all((night.directory.trial(trial.number) / RESUME).is_dir() for trial in paused if trial.tokens)

    [damaged] = [trial for trial in paused if trial.tokens]
    for file in (night.directory.trial(damaged.number) / RESUME).iterdir():
        flip(file)  # as a disk does: a line in the log, and no failed trial
    search = night.begin()
    night.until_midway()
    [notice] = events_of(night.directory, "notice")
    assert notice["trial"] == damaged.number and "begins anew" in notice["text"]
    with night.frozen_trials():  # so that they cannot have saved themselves before the second
        search.signal(signal.SIGINT)
        night.until(lambda events: night.directory.stop_requested, "the first is heard")
        search.signal(signal.SIGINT)  # twice: at once
        assert search.wait() == 130
    assert "ended at once; continue with:  recur-tune resume night" in search.err

    search = night.begin()
    night.until_midway()
    search.signal(signal.SIGKILL)  # the driver is gone, and its cluster with it
    search.wait()

    search = night.begin()
    night.until_midway()
    kill_children(search, "gcs_server")  # Ray's store alone: whoever asks it anything is stuck
    assert_lost_its_cluster(night, search)
    assert "Failed to connect to GCS" not in search.err, "Ray has not had the last word"

    search = night.begin()
    night.until_midway()
    kill_children(search, "raylet")  # the driver's own node alone: the store still answers, and marks it dead
    assert_lost_its_cluster(night, search)
    assert "raylet" not in search.out + search.err, "Ray has not printed its log among what the search found"

    search = night.begin()
    night.until_midway()
    kill_children(search, "gcs_server", "raylet")  # the cluster is gone under the driver
    assert_lost_its_cluster(night, search)

    wanted = night.directory.state().trained + 1
    search = night.begin("--trials", wanted)
    assert search.wait() == 0, search.err
    state = night.directory.state()
    assert state.status == "finished"
    assert state.trained == wanted and not list(state.in_state("failed"))
    assert_settled(night.directory)


def test_a_detached_search_runs_until_it_is_stopped_from_elsewhere(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DASHBOARD, "off")
    begun = run("search", night.space, "--name", "night", "--results", night.results, "--detach")
    assert begun.code == 0 and "this terminal may be closed" in begun.err, begun.err
    process = psutil.Process(int(begun.err.partition("as process ")[2].partition(";")[0]))
    assert os.getsid(process.pid) == process.pid, "a hang-up of this terminal is not for it"
    until(night.is_midway, "a validation midway", hopeless=lambda: not night.directory.is_running)
    stopped = run("stop", "night", "--results", night.results)
    assert stopped.code == 0, stopped.err
    assert "recur-tune resume night" in stopped.err
    process.wait(PATIENCE)  # its last words come after the search is free
    assert "paused, and every trial saved" in run("logs", "night", "--results", night.results).out
    assert list(night.directory.state().in_state("paused"))
    assert not night.directory.is_running
    assert run("stop", "night", "--results", night.results).code == 2
    assert json.loads(run("status", "night", "--results", night.results, "--json").out)["status"] == "paused"
    assert events_of(night.directory, "search")[-1]["status"] == "paused"
