"""A base is pretrained by the cluster, through a killed worker and a pause, once for all searches; all can see it."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from recur_tune.api.outputs import OUTPUTS
from recur_tune.cluster.connection import Cluster
from recur_tune.common.known_shapes import PRETRAINING
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.tracking_place import DELIVERED, tracking_uri
from recur_tune.search.run import driver_context
from recur_tune.search.run.driver import run_search
from recur_tune.tracking.prometheus.metrics import samples_of
from tests.cli.run import run
from tests.search.run.searches import ALIKE, ONE_AT_A_TIME, assert_settled, events_of, held, small_spec
from tests.waiting import until

pytestmark = pytest.mark.ray


def progress(directory: SearchDirectory) -> list[dict[str, Any]]:
    """What the log says of the pretraining itself."""
    return [event for event in events_of(directory, "stage") if "loss" in event]


def test_the_cluster_pretrains_a_base_and_everybody_is_told(
    cluster: Cluster, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRETRAINING["tiny"], "tokens", 40_000)
    monkeypatch.setattr(driver_context, "_SECONDS_BETWEEN_LINES", 0.0)  # the first report of every worker is logged
    changes = ALIKE | {"space__base": "tiny", "budget__trials": 1, "resources__cpus": ONE_AT_A_TIME}
    spec = small_spec(world, **changes)
    directory = SearchDirectory.create(tmp_path, "based", spec)
    seen: dict[str, Any] = {}

    def kill_the_worker_and_then_stop() -> None:
        [first, *_] = until(lambda: progress(directory), "a report of the pretraining", pause=0.02)
        with held(first["worker"]):  # or it would be nearly through
            seen["status"] = json.loads(run("status", "based", "--results", tmp_path, "--json").out)
            seen["words"] = run("status", "--results", tmp_path).out
            seen["numbers"] = {sample.name for sample in samples_of(directory.state(), spec)}
            os.kill(int(first["worker"].partition(":")[2]), signal.SIGKILL)
        until(lambda: events_of(directory, "notice"), "the death of its worker")
        until(lambda: progress(directory)[-1]["worker"] != first["worker"], "another worker", pause=0.02)
        with held(progress(directory)[-1]["worker"]):
            directory.request_stop()

    thread = threading.Thread(target=kill_the_worker_and_then_stop, daemon=True)
    thread.start()
    state = run_search(directory, OUTPUTS)
    thread.join()
    assert (state.status, state.trials) == ("paused", {})
    assert "died" in state.notices[0]
    assert all(int(one["worker"].partition(":")[2]) != os.getpid() for one in progress(directory))
    assert seen["status"]["status"] == "preparing" and "pretraining the base tiny" in seen["status"]["stage"]
    assert "pretraining the base tiny" in seen["words"]
    assert {"base_share", "base_loss"} <= seen["numbers"]
    client, parent = (
        MlflowClient(tracking_uri(directory)),
        json.loads((directory.path / DELIVERED).read_text())["parent"],
    )
    assert client.get_metric_history(parent, "base_loss"), "MLflow has it before there is a trial"
    assert client.get_run(parent).info.status == "KILLED"

    before = len(progress(directory))
    assert run_search(directory, OUTPUTS).status == "finished"
    assert progress(directory)[before]["tokens"] > progress(directory)[0]["tokens"], "it went on where it was"
    assert directory.own_base(spec.corners[0]).is_dir()
    assert_settled(directory)

    other = SearchDirectory.create(tmp_path, "other", spec)
    assert run_search(other, OUTPUTS).status == "finished"
    assert not progress(other), "once for all searches"
    stages = " ".join(event["text"] for event in events_of(other, "stage"))
    assert "taking the base tiny, which was pretrained before" in stages and "pretraining" not in stages
