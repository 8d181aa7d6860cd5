"""What MLflow's pages need besides numbers: words, columns, datasets and figures, read back through its client."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from PIL import Image

from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.tracking_place import DELIVERED, NOTE, Delivered, tracking_uri
from recur_tune.tracking.mlflow import tracker as tracking
from recur_tune.tracking.mlflow.system_metrics import SWITCH, SystemMetrics
from recur_tune.tracking.mlflow.tracker import DeliveryFailed, Tracker
from tests.tracking.tracked import Seen, begin, complete, report, rich_search, search, wait_for
from tests.waiting import PATIENCE


def inputs(run: Run) -> list[tuple[str, str]]:
    """The corpora that a run reads, each with what for."""
    return [(one.dataset.name, tag.value) for one in run.inputs.dataset_inputs for tag in one.tags]


def test_the_searchs_words_follow_its_front(results: Path) -> None:
    directory = search(results)
    tracker = Tracker(directory)
    for number, perplexity, best in ((1, 50.0, "T1"), (2, 40.0, "T2")):
        complete(directory, number, perplexity)
        tracker.deliver()
        seen = Seen(directory)
        [(name, run)] = re.findall(r"\| \[(T\d+)\]\(#/experiments/\d+/runs/(\w+)\)", seen.parent.data.tags[NOTE])
        assert (name, run) == (best, seen.children()[best].info.run_id)
    notes = {name: run.data.tags[NOTE] for name, run in seen.children().items()}
    assert "**on the front**" in notes["T2"] and "**on the front**" not in notes["T1"]
    assert f"of [first](#/experiments/{seen.experiment}/runs/{seen.parent.info.run_id})" in notes["T2"]


def test_words_cost_no_call_of_their_own(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = search(results)
    complete(directory, 1, 50.0)
    tracker = Tracker(directory)
    tracker.deliver()
    calls: list[str] = []
    for name in ("log_batch", "set_tag", "log_inputs", "create_run", "get_run", "set_experiment_tag"):
        real = getattr(MlflowClient, name)

        def counted(*arguments: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            calls.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(MlflowClient, name, counted)
    report(directory, 1, 1000, 45.0)
    tracker.deliver()
    assert calls == ["log_batch", "log_batch"], "the trial's, and the search's"
    complete(directory, 2, 40.0)
    calls.clear()
    tracker.deliver()
    assert sorted(calls) == ["create_run", "log_batch", "log_batch", "log_batch", "log_inputs"]


def test_runs_say_who_made_them_and_which_search_they_are_of(results: Path) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    seen = Seen(directory)
    for run in [seen.parent, *seen.children().values()]:
        assert run.data.tags["search"] == "first"
        assert run.data.tags["mlflow.source.name"] == "recur-tune"
        assert run.data.tags["mlflow.user"] not in ("", "unknown")
    assert seen.client.get_experiment(seen.experiment).tags["mlflow.experimentKind"] == "custom_model_development"


def test_an_experiment_that_was_there_before_gets_its_kind(results: Path) -> None:
    directory = rich_search(results)
    client = MlflowClient(Tracker(directory).uri)
    made = client.create_experiment("recur-tune", (results / "files").as_uri())
    Tracker(directory).deliver()
    assert client.get_experiment(made).tags["mlflow.experimentKind"] == "custom_model_development"


@pytest.mark.parametrize("view, count", [("trials", 6), ("front", 2)])
def test_a_view_has_columns_that_its_runs_fill_and_finds_what_it_says(results: Path, view: str, count: int) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    seen = Seen(directory)
    tags = seen.client.get_experiment(seen.experiment).tags
    shared = json.loads(tags[f"mlflow.sharedViewState.{view}-{seen.parent.info.run_id}"])
    order = f"{shared['orderByKey']} {'ASC' if shared['orderByAsc'] else 'DESC'}"
    found = seen.client.search_runs([seen.experiment], shared["searchFilter"], order_by=[order])
    assert len(found) == count
    assert found[0].info.run_name == "T2", "the best first"
    values = {
        f"{kind}.`{name}`" for kind in ("metrics", "params", "tags") for name in getattr(found[0].data, kind)
    }  # fmt: skip
    assert set(shared["selectedColumns"]) <= values
    assert {"metrics.`perplexity`", "metrics.`MFLOPs_per_token`", "params.`window`"} <= set(shared["selectedColumns"])
    assert shared["selectedColumns"][0] == "tags.`state`", "what tells a trial that others beat from a complete one"
    assert f"viewStateShareKey={view}-{seen.parent.info.run_id}" in seen.parent.data.tags[NOTE]


def test_a_run_has_its_corpus_as_datasets_and_its_base_as_parameters(results: Path) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    seen = Seen(directory)
    wanted = [("stdlib", "training"), ("stdlib", "validation")]
    for run in [seen.parent, *seen.children().values()]:
        assert sorted(inputs(run)) == wanted
    digests = {one.dataset.digest for one in seen.parent.inputs.dataset_inputs}
    assert len(digests) == 2 and all(re.fullmatch("[0-9a-f]{12}", digest) for digest in digests)
    params = {"corpus": "stdlib", "base": "tiny", "base.layers": "3", "base.parameters": "174656"}
    assert params.items() <= seen.parent.data.params.items()


def test_a_text_that_changes_is_another_dataset(results: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    texts = tmp_path_factory.mktemp("texts")
    digests = []
    for name, text in (("one", "a"), ("same", "a"), ("other", "b")):
        for split in ("train", "validation"):
            (texts / f"{split}.txt").write_text(text)
        directory = search(results, name, space={"base": "tiny", "corpus": f"text:{texts}", "window": [32, 64]})
        Tracker(directory).deliver()
        [training] = [
            one.dataset for one in Seen(directory).parent.inputs.dataset_inputs if one.tags[0].value == "training"
        ]
        assert (training.name, training.source_type, json.loads(training.source)["uri"]) == (
            "text",
            "local",
            str(texts),
        )
        digests.append(training.digest)
    assert digests[0] == digests[1] != digests[2]


def test_what_is_not_at_hand_keeps_nothing_from_arriving(results: Path) -> None:
    space = {"base": str(results / "gone"), "corpus": f"text:{results / 'gone'}", "window": [32, 64]}
    directory = search(results, space=space)
    complete(directory, 1, 50.0)
    assert Tracker(directory).deliver()
    seen = Seen(directory)
    assert {one.dataset.digest for one in seen.parent.inputs.dataset_inputs} == {"unread"}
    assert seen.parent.data.params["base"] == str(results / "gone")
    assert "base.layers" not in seen.parent.data.params
    assert seen.on_front == {"T1"}


def noted(directory: SearchDirectory) -> Delivered:
    """What the file beside a search's log says has arrived."""
    return Delivered.read(directory.path / DELIVERED, tracking_uri(directory))


def test_a_running_search_shows_its_front_in_pictures_but_not_too_often(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PAUSE", 0.01)
    monkeypatch.setattr(tracking, "FIGURES_APART", 0.0)
    drawn: list[int] = []

    def draw(name: str, spec: Any, state: Any, folder: Path) -> list[Path]:
        drawn.append(len(state.trials))
        Image.new("RGB", (1280, 800), "teal").save(folder / "front.png")
        (folder / "front.html").write_text(f"{len(state.trials)} trials")
        return [folder / "front.png", folder / "front.html"]

    monkeypatch.setattr(tracking, "draw_front", draw)
    directory = search(results)
    begin(directory, 1)
    tracker = Tracker(directory)
    tracker.start()
    wait_for(lambda: 1 in noted(directory).runs)
    complete(directory, 2, 50.0)
    wait_for(lambda: noted(directory).figures == [2])
    seen = Seen(directory)
    run, client = seen.parent.info.run_id, seen.client
    assert {file.path for file in client.list_artifacts(run)} == {
        "front.json",
        "front.png",
        "front-small.png",
        "front.html",
    }
    assert Path(client.download_artifacts(run, "front.html")).read_text() == "2 trials"
    with Image.open(client.download_artifacts(run, "front-small.png")) as small:
        assert small.size == (640, 400) and small.getpixel((320, 200)) == (0, 128, 128)
    assert "![The front]" in seen.parent.data.tags[NOTE]
    monkeypatch.setattr(tracking, "FIGURES_APART", 300.0)
    for number, perplexity in ((3, 40.0), (4, 30.0), (5, 20.0)):
        complete(directory, number, perplexity)
        wait_for(lambda number=number: noted(directory).front == [number])
        wait_for(lambda: noted(directory).figures == [3])
    assert tracker.close(PATIENCE)
    assert drawn == [2, 3], "the next are due in minutes"


def test_figures_that_cannot_be_sent_keep_no_number_from_arriving(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PAUSE", 0.01)
    asked = threading.Event()

    def draw(*_: Any) -> list[Path]:
        asked.set()
        return [results / "missing.png"]

    monkeypatch.setattr(tracking, "draw_front", draw)
    directory = search(results)
    complete(directory, 1, 50.0)
    tracker = Tracker(directory)
    tracker.start()
    assert asked.wait(PATIENCE)
    complete(directory, 2, 40.0)
    assert tracker.close(PATIENCE)
    assert Seen(directory).on_front == {"T2"}


def test_the_machine_is_watched_when_asked(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PAUSE", 0.01)
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    monkeypatch.setenv(SWITCH, "true")
    directory = search(results)
    begin(directory, 1)
    tracker = Tracker(directory)
    tracker.start()
    wait_for(lambda: bool(noted(directory).runs))
    wait_for(lambda: any(name.startswith("system/cpu") for name in Seen(directory).parent.data.metrics))
    directory.record("search", status="paused")
    assert tracker.close(PATIENCE)
    assert Seen(directory).parent.info.status == "KILLED"
    assert not watchers()


@pytest.mark.parametrize("word", ["", "false"])
def test_nobody_watches_the_machine_unasked(results: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv(SWITCH, word)
    directory = search(results)
    tracker = Tracker(directory)
    tracker.deliver()
    machine = SystemMetrics(tracker.uri)
    machine.keep_going(noted(directory).parent)
    assert not watchers()
    machine.end()


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "SystemMetrics" in thread.name]


def test_a_database_of_an_older_version_says_how_to_upgrade(results: Path) -> None:
    with sqlite3.connect(results / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")  # one of MLflow's first
    with pytest.raises(DeliveryFailed) as refused:
        Tracker(rich_search(results)).deliver()
    assert "mlflow db upgrade" in str(refused.value) and "\n" not in str(refused.value)


def test_a_folder_that_cannot_be_written_is_a_sentence(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise UserError("results/first could not be written (Read-only file system).")

    monkeypatch.setattr(tracking, "write_text", refuse)
    tracker = Tracker(rich_search(results))
    with pytest.raises(DeliveryFailed, match="Read-only file system"):
        tracker.deliver()
    assert not tracker.close(PATIENCE) and "Read-only" in str(tracker.problem)
