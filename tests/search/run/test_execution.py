"""What becomes of a trial when its workers fail, by what they say of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.exceptions import ActorDiedError, RayTaskError

from recur_tune.common.errors import StorageFault
from recur_tune.search.run import execution
from recur_tune.search.run.trainable import Moved
from recur_tune.search.run.worker_group import Place, WorkersFailed, visible_gpus

DONE = {"state": "complete"}
LOST = RuntimeError("Connection closed by peer [127.0.0.1]:4711")


class Groups:
    """Groups of workers, of which each fails as it is told, and the one after them trains the trial."""

    def __init__(self, *failures: list[Exception]) -> None:
        self.failures, self.begun, self.ended = list(failures), 0, 0

    def __call__(self, job: dict[str, Any]) -> Groups:
        self.begun += 1
        return self

    def train(self, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self.failures:
            raise WorkersFailed(self.failures.pop(0))
        yield DONE

    def end(self) -> None:
        self.ended += 1


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What Ray Tune hears."""
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(tune, "report", lambda result: heard.append(json.loads(result["report"])))
    yield heard
    execution.end_workers()


def train(groups: Groups, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "WorkerGroup", groups)
    execution.train_on_workers({"folder": str(folder)})


def test_a_group_stays_for_the_next_trial(
    said: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups()
    for _ in range(2):
        train(groups, tmp_path, monkeypatch)
    assert (groups.begun, groups.ended, said) == (1, 0, [DONE, DONE])


def test_a_group_that_lost_a_worker_is_replaced(
    said: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups([LOST], [LOST, ActorDiedError()])
    train(groups, tmp_path, monkeypatch)
    assert (groups.begun, groups.ended, said) == (3, 2, [DONE])


def test_what_fails_again_and_again_fails_the_trial_with_its_reason(
    said: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups(*[[LOST, RayTaskError("train", "", ValueError("no such layer"))]] * 4)
    with pytest.raises(WorkersFailed):
        train(groups, tmp_path, monkeypatch)
    assert (groups.begun, groups.ended) == (4, 4)
    assert [(one["state"], one["replace_actor"]) for one in said] == [("failed", True)]
    assert said[0]["reason"].startswith("ValueError: no such layer")


def test_a_full_disk_pauses_a_trial_and_a_leaving_node_moves_it(
    said: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StorageFault("the disk is full")
    train(Groups([LOST, full]), tmp_path, monkeypatch)
    assert [(one["state"], one["cause"]) for one in said] == [("paused", "storage")]
    with pytest.raises(WorkersFailed):
        train(Groups([LOST, Moved("n1")]), tmp_path, monkeypatch)
    assert len(said) == 1, "it has said so itself"


@pytest.mark.parametrize(
    ("gpus", "seen"),
    [
        ([["0"], ["1"], ["0"]], [(["0", "1"], 0), (["0", "1"], 1), (["0"], 0)]),
        ([["2", "3"], ["0", "1"], ["5"]], [(["2", "3", "0", "1"], 0), (["2", "3", "0", "1"], 2), (["5"], 0)]),
        ([["1"], ["1"], ["1"]], [(["1"], 0)] * 3),  # two on one card
        ([[], [], []], [([], 0)] * 3),
    ],
)  # fmt: skip
def test_workers_of_a_node_see_each_others_gpus_and_use_their_own(
    gpus: list[list[str]], seen: list[tuple[list[str], int]]
) -> None:
    places = [Place(node, own, f"{node}:{at}") for at, (node, own) in enumerate(zip("aab", gpus, strict=True))]
    assert [visible_gpus(place, places) for place in places] == seen
