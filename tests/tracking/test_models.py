"""The front's models as MLflow's logged models, read back through MLflow's own client."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND

from recur_tune.search.record.directory import MODEL, SearchDirectory
from recur_tune.search.record.tracking_place import NOTE, tracking_uri
from recur_tune.tracking.mlflow.tracker import DeliveryFailed, Tracker
from tests.tracking.tracked import Seen, complete, search
from tests.tracking.unheard import Unheard

pytestmark = pytest.mark.slow


def train(directory: SearchDirectory, number: int, perplexity: float, flops: float = 500.0, **fields: Any) -> None:
    """A trial at its full budget, and what it leaves."""
    complete(directory, number, perplexity, flops, **fields)
    (directory.trial(number) / MODEL).mkdir(parents=True)


def end(directory: SearchDirectory, tracker: Tracker | None = None) -> Tracker:
    """Deliver as a search does that ends."""
    tracker = tracker or Tracker(directory)
    tracker.deliver()
    tracker.log_files([])
    return tracker


def models(directory: SearchDirectory) -> dict[str, LoggedModel]:
    """By the trials' names; two of one trial are an error."""
    seen = Seen(directory)
    found = list(seen.client.search_logged_models([seen.experiment]))
    named = {model.name.removeprefix(f"{directory.name}-"): model for model in found}
    assert len(named) == len(found)
    return named


def everything(directory: SearchDirectory) -> Any:
    """All that must not change when the same is delivered again."""
    runs = {name: run.outputs.to_dictionary() for name, run in Seen(directory).children().items() if run.outputs}
    return Seen(directory).everything(), runs, {
        name: (model.model_id, model.status, model.params, model.tags, [m.to_dictionary() for m in model.metrics])
        for name, model in models(directory).items()
    }  # fmt: skip


def test_every_model_of_the_front_is_logged_with_its_run(results: Path) -> None:
    directory = search(results)
    train(directory, 1, 50.0)
    train(directory, 2, 30.0, flops=800.0)
    train(directory, 3, 90.0, flops=900.0)  # beaten
    tracker = Tracker(directory)
    tracker.deliver()
    assert models(directory) == {}, "a front that still changes has no models yet"
    tracker.log_files([])

    seen, logged = Seen(directory), models(directory)
    assert logged.keys() == seen.on_front == {"T1", "T2"}
    for name, model in logged.items():
        run = seen.children()[name]
        assert (model.status, model.source_run_id) == ("READY", run.info.run_id)
        assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
        assert model.params == run.data.params
        metrics = {metric.key: metric.value for metric in model.metrics}
        same = {"perplexity", "bits_per_byte", "loss", "MFLOPs_per_token"}
        assert metrics == {key: value for key, value in run.data.metrics.items() if key in same}
        folder = directory.trial(int(name[1:])) / MODEL
        assert (model.tags["pareto"], model.tags["recur_tune.folder"]) == ("true", str(folder))
        assert f"--trial {name} --to" in model.tags[NOTE]
    assert {model.model_type for model in logged.values()} == {"recurrent (pooled)"}
    assert seen.history(seen.children()["T2"], "perplexity") == [(1000, 30.0)], "once, whoever else has it"


def test_the_weights_are_not_copied(results: Path) -> None:
    directory = search(results)
    train(directory, 1, 50.0)
    (directory.trial(1) / MODEL / "model.safetensors").write_bytes(bytes(100_000))
    end(directory)
    assert [file.name for file in (results / "mlartifacts").rglob("*.*")] == ["front.json"]


def test_a_model_that_leaves_the_front_is_told_so(results: Path) -> None:
    directory = search(results)
    train(directory, 1, 50.0)
    train(directory, 2, 30.0, flops=800.0)
    tracker = end(directory)
    before = models(directory)
    train(directory, 3, 40.0)  # better than 1 at the same cost
    shutil.rmtree(directory.trial(1) / MODEL)
    end(directory, tracker)

    after = models(directory)
    assert {name: model.tags["pareto"] for name, model in after.items()} == {"T1": "false", "T2": "true", "T3": "true"}
    assert after["T1"].model_id == before["T1"].model_id
    assert after["T1"].tags["recur_tune.folder"].startswith("removed")
    assert "on the front" in before["T1"].tags[NOTE] and "on the front" not in after["T1"].tags[NOTE]
    assert after["T2"].tags == before["T2"].tags


def test_a_search_that_keeps_no_models_logs_none(results: Path) -> None:
    directory = search(results, keep="none")
    complete(directory, 1, 50.0)
    end(directory)
    assert models(directory) == {}


def test_a_model_can_be_registered(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = search(results, name="books.v2")  # a dot, which no logged model's name may have
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(directory))  # the registry asks for it
    train(directory, 1, 50.0)
    end(directory)
    [model] = Seen(directory).client.search_logged_models([Seen(directory).experiment])
    assert model.name == "books-v2-T1"
    client = Seen(directory).client
    client.create_registered_model("reader")
    version = client.create_model_version("reader", f"models:/{model.model_id}", model_id=model.model_id)
    assert version.run_id == model.source_run_id


@pytest.mark.parametrize("lost", ["nothing", "the file"])
def test_delivering_again_changes_nothing(results: Path, lost: str) -> None:
    directory = search(results)
    train(directory, 1, 50.0)
    train(directory, 2, 30.0, flops=800.0)
    end(directory)
    before = everything(directory)
    if lost == "the file":
        (directory.path / "mlflow.json").unlink()
    end(directory)
    assert everything(directory) == before


@pytest.mark.parametrize(
    "call",
    ["create_logged_model", "log_batch", "log_outputs", "finalize_logged_model", "set_logged_model_tags"],
)
def test_a_call_that_arrived_unnoted_duplicates_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Every such call goes wrong once, after it arrived; then the same tracker tries again."""
    directory = search(results)
    tracker, unheard = Tracker(directory), Unheard(monkeypatch, call)

    def end_at_last() -> None:
        for _ in range(20):
            unheard.try_again()
            try:
                end(directory, tracker)
                return
            except DeliveryFailed:
                pass

    train(directory, 1, 50.0)
    train(directory, 2, 30.0, flops=800.0)
    end_at_last()
    train(directory, 3, 40.0)
    end_at_last()
    assert unheard.faults > 0
    assert {name: (model.status, model.tags["pareto"]) for name, model in models(directory).items()} == {
        "T1": ("READY", "false"), "T2": ("READY", "true"), "T3": ("READY", "true"),
    }  # fmt: skip
    for run in Seen(directory).children().values():
        assert len(run.outputs.model_outputs) == 1


def test_a_deleted_run_or_model_blocks_nothing_else(results: Path) -> None:
    directory = search(results)
    train(directory, 1, 50.0)
    train(directory, 2, 30.0, flops=800.0)
    tracker = Tracker(directory)
    tracker.deliver()
    seen = Seen(directory)
    seen.client.delete_run(seen.children()["T1"].info.run_id)
    tracker.log_files([])
    assert models(directory).keys() == {"T2"}
    seen.client.delete_logged_model(models(directory)["T2"].model_id)
    train(directory, 3, 20.0, flops=300.0)  # better than all
    end(directory, tracker)
    assert models(directory).keys() == {"T3"}


def test_a_server_that_knows_no_logged_models_gets_everything_else(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_arguments: Any, **_options: Any) -> None:
        raise MlflowException("there is no such call", ENDPOINT_NOT_FOUND)

    monkeypatch.setattr(MlflowClient, "search_logged_models", missing)
    directory = search(results)
    train(directory, 1, 50.0)
    end(directory)
    assert Seen(directory).on_front == {"T1"}
