"""Two workers that train one trial after the other: they leave together, whoever asks, and stay for the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recur_tune.api.outputs import OUTPUTS
from recur_tune.cluster.connection import Cluster
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.run.driver import run_search
from recur_tune.training import RESUME
from tests.cli.run import Outcome
from tests.cli.run import run as command
from tests.search.run.searches import ALIKE, assert_settled, events_of, held, small_spec
from tests.waiting import until

pytestmark = pytest.mark.ray


def when_midway(directory: SearchDirectory, trial: int, do: Callable[[], Any]) -> threading.Thread:
    """Do something to a trial after its first validation, while it gets no further."""

    def reports() -> list[dict[str, Any]]:
        return [one for one in events_of(directory, "report") if one["trial"] == trial and one.get("validation")]

    def watch() -> None:
        [report, *_] = until(reports, f"a validation of T{trial}", pause=0.02)
        with held(report["worker"]):
            do()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_workers_leave_a_trial_that_ends_train_the_next_and_save_it_for_a_stop(
    cluster: Cluster, world: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        **ALIKE, "budget__trials": 2, "budget__tokens": 20_000, "budget__rungs": 4, "resources__workers": 2,
        "resources__cpus": 1, "space__learning_rate": 0.003,
    }  # fmt: skip
    directory = SearchDirectory.create(tmp_path, "pair", small_spec(world, **changes))
    said: list[Outcome] = []
    watching = [
        when_midway(directory, 0, lambda: said.append(command("end", "pair", "T0", "--results", tmp_path))),
        when_midway(directory, 1, directory.request_stop),
    ]
    state = run_search(directory, OUTPUTS)
    for thread in watching:
        thread.join()
    assert said[0].code == 0
    assert [trial.state for trial in state.trials.values()][:2] == ["pruned", "paused"]
    assert state.trials[0].tokens < 20_000 and "ended by hand" in state.trials[0].reason
    assert len({event["worker"] for event in events_of(directory, "report") if "worker" in event}) == 1
    assert (directory.trial(1) / RESUME).is_dir()
    paused_at = state.trials[1].tokens

    state = run_search(directory, OUTPUTS)
    assert state.status == "finished" and state.trials[1].state in ("complete", "pruned")
    assert state.trials[1].tokens > paused_at > 0
    assert_settled(directory)
