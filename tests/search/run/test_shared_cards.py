"""A search on a Ray cluster with a pretended card, of which large and small trials get as much as was predicted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recur_tune.cluster.connection import DASHBOARD
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.state import ENDED
from tests.cluster.pretended import pretend_cards
from tests.command import Command
from tests.search.run.searches import assert_settled, events_of, held, small_spec, write_space

pytestmark = pytest.mark.ray


def test_trials_share_a_gpu_and_workers_train_the_next_of_their_size(world: Path, tmp_path: Path) -> None:
    changes = {
        "space__recurrence": "none", "space__window": 8, "space__overlap": 0, "space__batch": [4, 64],
        "budget__tokens": 6_000, "budget__trials": 6, "sampler": {"name": "random"},
        "first": [{"batch": 4}] * 5,  # after the baseline, whose batch is the larger
        "reference": {"peak_memory": "10MB"}, "resources__cpus": 1,
    }  # fmt: skip
    space = write_space(tmp_path / "space.yaml", small_spec(world, **changes))
    pretend_cards(tmp_path, f"{8 * 1025}, Disabled\n")  # an eighth is CUDA's part and a mebibyte
    env = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "RAY_OVERRIDE_RESOURCES": '{"CPU": 3, "GPU": 1}',
        "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1", DASHBOARD: "off",
    }  # fmt: skip
    directory = SearchDirectory(tmp_path / "results" / "packed")
    with Command("search", space, "--name", "packed", "--results", tmp_path / "results", env=env) as search:

        def reports(key: str, state: str | None = None) -> list[str]:
            known = events_of(directory, "report") if directory.path.exists() else []
            return [event[key] for event in known if key in event and event.get("state") == state]

        search.until(lambda: reports("worker"), "a trial midway")
        with held(reports("worker")[0]):
            search.until(lambda: reports("trial", "complete"), "another one's end, on the card of the first")
        assert search.wait() == 0, search.err
    assert "note: gpus auto: up to 3 trials share a card of 8.01 GiB, for want of cores." in search.err
    trials = directory.state().trials
    assert {trial.state for trial in trials.values()} <= {"complete", "pruned"} and len(trials) == 6
    assert_settled(directory)
    parts: dict[int, float] = {}
    taken: list[float] = []
    for event, _ in directory.events():
        if event["kind"] == "running":
            parts[event["trial"]] = event["gpus"]
            taken.append(sum(parts.values()))
        elif event.get("state") in ENDED:
            assert parts.pop(event["trial"]) == {4: 0.125, 64: 0.25}[trials[event["trial"]].params["batch"]]
    assert max(taken) <= 1
    assert len({trial.worker for trial in trials.values()}) < len(trials), "no worker trained a second trial"
