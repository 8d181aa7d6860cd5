"""MLflow behind a server: one that answers, one that is away, one that never says a word."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from recur_tune.search.record.directory import MODEL
from recur_tune.search.record.front import front_rows
from recur_tune.tracking.mlflow import tracker as tracking
from recur_tune.tracking.mlflow.tracker import DeliveryFailed, Tracker
from tests.ports import free_port
from tests.tracking.tracked import OBJECTIVES, Seen, complete, rich_search, search, wait_for
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


def test_a_server_takes_the_same(results: Path, server: str, server_folder: Path) -> None:
    directory, local = rich_search(results, name="remote", uri=server), rich_search(results, name="local")
    tracker = Tracker(directory)
    assert tracker.run_url is None
    tracker.start()
    assert tracker.close(PATIENCE) and tracker.problem is None
    Tracker(local).deliver()

    seen = Seen(directory)
    assert {name: run.info.status for name, run in seen.children().items()} == {
        name: run.info.status for name, run in Seen(local).children().items()
    }
    assert seen.on_front == {"T2", "T6"}
    assert seen.table == front_rows(directory.state(), OBJECTIVES)
    assert len(list((server_folder / "mlartifacts").rglob("front.json"))) == 1, "not in the current folder"
    assert tracker.run_url == f"{server}/#/experiments/{seen.experiment}/runs/{seen.parent.info.run_id}"
    before = seen.everything()
    (directory.path / "mlflow.json").unlink()
    Tracker(directory).deliver()
    assert seen.everything() == before
    (directory.trial(2) / MODEL).mkdir(parents=True)
    assert Tracker(directory).finish([]) == ""
    [model] = seen.client.search_logged_models([seen.experiment])
    assert (model.name, model.status, model.params["window"]) == ("remote-T2", "READY", "42")
    assert {metric.key: metric.value for metric in model.metrics}["perplexity"] == 30.0


def test_what_an_unreachable_server_missed_arrives_later(results: Path, server: str) -> None:
    directory = rich_search(results, name="late", uri=f"http://user:secret@127.0.0.1:{free_port()}")
    tracker = Tracker(directory)
    with pytest.raises(DeliveryFailed) as refused:
        tracker.deliver()
    message = str(refused.value)
    assert "Connection refused" in message and "late" in message and "secret" not in message
    assert message.count(". ") == 0 and message.endswith(".") and "\n" not in message
    assert not (directory.path / "mlflow.json").exists()
    with pytest.raises(DeliveryFailed):
        tracker.log_files([directory.path / "search.yaml"])
    told = tracker.finish([])
    assert "MLflow has not got everything" in told and told.endswith("`recur-tune track late` delivers it.")

    directory.change_spec(directory.spec.model_copy(update={"tracking": server}))
    assert Tracker(directory).deliver()
    assert len(Seen(directory).children()) == 6


def test_the_thread_outlives_failures_and_delivers_when_it_can(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PAUSE", 0.01)
    directory = search(results)
    complete(directory, 1, perplexity=50.0)
    real, reachable = MlflowClient.log_batch, False

    def sometimes(*arguments: Any, **options: Any) -> Any:
        if not reachable:
            raise MlflowException("the server is away")
        return real(*arguments, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", sometimes)
    tracker = Tracker(directory)
    tracker.start()
    wait_for(lambda: tracker.problem is not None)
    assert "the server is away" in str(tracker.problem)
    reachable = True
    wait_for(lambda: tracker.problem is None)
    assert Seen(directory).on_front == {"T1"}
    complete(directory, 2, perplexity=40.0)
    assert tracker.close(PATIENCE)
    assert Seen(directory).on_front == {"T2"}


def test_closing_is_bounded_where_nobody_answers(results: Path) -> None:
    with socket.socket() as silent:  # takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        directory = rich_search(results, uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        tracker = Tracker(directory)
        tracker.start()
        assert not tracker.close(timeout=0.2)
        assert "mlflow" in {thread.name for thread in threading.enumerate()}, "it waited for an answer"


def test_closing_a_refused_delivery_says_so(results: Path) -> None:
    tracker = Tracker(rich_search(results, uri=f"http://127.0.0.1:{free_port()}"))
    tracker.start()
    assert not tracker.close(PATIENCE)
    assert "Connection refused" in str(tracker.problem)
