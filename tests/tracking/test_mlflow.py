"""What a search's log becomes in MLflow, read back through MLflow's own client."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from PIL import Image

from recur_tune.searching.directory import MODEL
from recur_tune.searching.front import front_rows, search_hypervolume
from recur_tune.tracking import mlflow as tracking
from recur_tune.tracking.mlflow import Tracker, Undelivered
from recur_tune.tracking.places import tracking_uri
from tests.database import empty_database
from tests.ports import free_port
from tests.tracking.tracked import OBJECTIVES, Seen, begin, complete, report, rich_search, search, wait_for

pytestmark = pytest.mark.slow


def parsed(value: str) -> Any:
    """A parameter, which MLflow keeps as a word."""
    return yaml.safe_load(value)


def test_a_search_is_a_run_and_its_trials_are_runs_below_it(results: Path) -> None:
    directory = rich_search(results)
    assert tracking_uri(directory) == f"sqlite:///{results}/mlflow.db"
    assert Tracker(directory).deliver()

    seen = Seen(directory)
    parent, children = seen.parent, seen.children()
    assert (parent.info.run_name, parent.info.status) == ("first", "FINISHED")
    assert parent.data.tags["recur_tune.version"] == directory.identity["version"]
    wanted = {
        "objectives": "perplexity, flops_per_token", "budget.tokens": "1000", "budget.trials": "5",
        "sampler.name": "known-costs", "resources.workers": "1", "limits.flops_per_token": "1M",
    }  # fmt: skip
    assert wanted.items() <= parent.data.params.items()
    assert {name: (run.info.status, run.data.tags["state"]) for name, run in children.items()} == {
        "T1": ("FINISHED", "complete"), "T2": ("FINISHED", "complete"), "T3": ("FINISHED", "pruned"),
        "T4": ("FAILED", "failed"), "T5": ("KILLED", "infeasible"), "T6": ("FINISHED", "complete"),
    }  # fmt: skip
    assert children["T1"].data.tags["recur_tune.role"] == "baseline"
    assert children["T3"].data.tags["recur_tune.folder"] == str(results / "first" / "trials" / "3")
    assert children["T4"].data.tags["recur_tune.reason"].startswith("the loss is not finite!")
    assert children["T5"].data.tags["recur_tune.reason"] == "flops_per_token is over its limit"


def test_a_trial_has_all_its_parameters_and_its_metrics_by_tokens(results: Path) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()

    seen = Seen(directory)
    trial = seen.children()["T2"]
    config = directory.spec.trial_config({"window": 42})
    assert {name: parsed(value) for name, value in trial.data.params.items()} == {
        name: value for name, value in config.plain_values().items() if value is not None
    }
    assert seen.history(trial, "MFLOPs_per_token") == [(0, 0.0008)]
    assert seen.history(trial, "training_loss") == [(500, 5.0), (1000, 5.0)]
    assert seen.history(trial, "measured_peak_memory_MiB") == [(500, 1.0), (1000, 1.0)]
    assert "tokens_per_second" not in trial.data.metrics, "it was not a number"
    validated = {name: seen.history(trial, name) for name in ("perplexity", "bits_per_byte", "loss")}
    assert validated == {
        "perplexity": [(1000, 30.0)], "bits_per_byte": [(1000, 2.5)],
        "loss": [(1000, 4.5)],
    }  # fmt: skip
    record = directory.state().trials[2]
    assert (trial.info.start_time, trial.info.end_time) == (round(1e3 * record.started), round(1e3 * record.ended))
    [point] = seen.client.get_metric_history(trial.info.run_id, "perplexity")
    assert trial.info.start_time <= point.timestamp <= trial.info.end_time


def test_tags_metrics_and_table_follow_the_front(results: Path) -> None:
    directory = search(results)
    tracker = Tracker(directory)
    volumes = []
    for number, (perplexity, flops, expected) in enumerate(
        [(50.0, 500.0, {"T1"}), (30.0, 800.0, {"T1", "T2"}), (60.0, 900.0, {"T1", "T2"}), (40.0, 400.0, {"T2", "T4"})],
        1,
    ):
        complete(directory, number, perplexity, flops)
        tracker.deliver()
        seen = Seen(directory)
        assert seen.on_front == expected
        assert set(seen.children(" and tags.pareto = 'false'")) == set(seen.children()) - expected
        assert seen.table == front_rows(directory.state(), OBJECTIVES)
        volumes.append((number, search_hypervolume(directory.state(), OBJECTIVES)))
    assert {row["trial"] for row in seen.table} == seen.on_front
    assert dict(seen.history(seen.parent, "hypervolume")) == pytest.approx(dict(volumes))
    assert seen.history(seen.parent, "front_size") == [(1, 1), (2, 2), (3, 2), (4, 2)]


def test_the_front_is_measured_whenever_a_trial_has_ended(results: Path) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    seen = Seen(directory)
    assert seen.history(seen.parent, "front_size") == [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2)]
    # 1 - perplexity / 100 and 1 - FLOPs / 1000, of the first trial, of two, and of two of which one is better
    first, second, third = 0.5 * 0.5, 0.5 * 0.5 + 0.2 * 0.2, 0.6 * 0.5 + 0.1 * 0.2
    assert dict(seen.history(seen.parent, "hypervolume")) == pytest.approx(
        {1: first, 2: second, 3: second, 4: second, 5: second, 6: third}
    )


def test_a_trial_has_only_the_parameters_that_it_has(results: Path) -> None:
    space = {"base": "tiny", "window": [32, 64], "recurrence": {"none": None, "pooled": {"width": [20, 30]}}}
    directory = search(results, space=space)
    for number, fields in enumerate([{"recurrence": "none"}, {"recurrence": "pooled", "width": 20}]):
        directory.record("trial", trial=number, params={"window": 32, **fields}, costs={"flops_per_token": 1.0})
        directory.record("running", trial=number)
    Tracker(directory).deliver()
    plain, recurrent = (Seen(directory).children()[name].data.params for name in ("T0", "T1"))
    of_recurrence = {"l_ins", "width", "depth", "pooling", "embeddings", "skip", "recurrence_rate", "tune"}
    assert recurrent.keys() - plain.keys() == of_recurrence and plain.keys() <= recurrent.keys()


def test_parameters_that_an_earlier_version_wrote_in_another_way_stay(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = rich_search(results)
    with monkeypatch.context() as earlier:
        earlier.setattr(tracking, "trial_params", lambda spec, trial: {"learning_rate": "3.00000000001e-4"})
        Tracker(directory).deliver()
    (directory.path / "mlflow.json").unlink()
    assert Tracker(directory).deliver()
    params = Seen(directory).children()["T2"].data.params
    assert (params["learning_rate"], params["window"]) == ("3.00000000001e-4", "42")


def test_one_delivery_says_the_same_as_many(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "EVENTS_PER_PASS", 1)
    directory = rich_search(results)
    Tracker(directory).deliver()
    one_by_one = Seen(directory).everything()
    (directory.path / "mlflow.json").unlink()
    monkeypatch.setattr(tracking, "EVENTS_PER_PASS", 500)
    Tracker(directory).deliver()
    assert Seen(directory).everything() == one_by_one


@pytest.mark.parametrize("lost", ["nothing", "the file", "the offset", "the runs", "half the file"])
def test_delivering_again_changes_nothing(results: Path, lost: str) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    before = Seen(directory).everything()
    note = directory.path / "mlflow.json"
    content = json.loads(note.read_text())
    changed = {"nothing": {}, "the offset": {"offset": 0}, "the runs": {"offset": 0, "runs": {}}}
    if lost == "the file":
        note.unlink()
    else:
        note.write_text(json.dumps(content | changed.get(lost, {})))
    if lost == "half the file":
        note.write_text(note.read_text()[:40])

    assert Tracker(directory).deliver()
    assert Seen(directory).everything() == before
    assert json.loads(note.read_text()) == content


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ConnectionError])  # a death, an answer that was lost
@pytest.mark.parametrize("call", ["create_run", "log_batch", "set_terminated", "update_run", "log_text"])
def test_a_call_that_arrived_unnoted_duplicates_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch, call: str, fault: type[BaseException]
) -> None:
    """Every such call goes wrong once, after it arrived; then another tracker, or the same one, tries again."""
    monkeypatch.setattr(tracking, "EVENTS_PER_PASS", 7)
    directory = rich_search(results)
    real = getattr(MlflowClient, call)
    faults = calls = 0

    def arrives_unheard(*arguments: Any, **options: Any) -> Any:
        nonlocal calls, faults
        answer = real(*arguments, **options)
        calls += 1
        if calls > faults:
            faults += 1
            raise fault
        return answer

    with monkeypatch.context() as faulty:
        faulty.setattr(MlflowClient, call, arrives_unheard)
        tracker, delivered = Tracker(directory), False
        while not delivered:
            calls = 0
            try:
                delivered = tracker.deliver()
            except KeyboardInterrupt:
                tracker = Tracker(directory)
            except Undelivered:
                pass
    assert faults > 0
    survived = Seen(directory).everything()
    assert len(survived) == 7
    (directory.path / "mlflow.json").unlink()
    Tracker(directory).deliver()
    assert Seen(directory).everything() == survived


def test_a_paused_trial_runs_on_in_the_same_run(results: Path) -> None:
    directory = search(results)
    tracker = Tracker(directory)
    begin(directory, 1)
    report(directory, 1, 500)
    tracker.deliver()
    [running] = Seen(directory).children().values()
    directory.record("report", trial=1, state="paused", reason="the search was asked to stop")
    directory.record("search", status="paused")
    tracker.deliver()
    [paused] = Seen(directory).children().values()
    stopped = Seen(directory).parent

    directory.record("search", status="started")
    directory.record("running", trial=1)
    resumed = Tracker(directory)
    resumed.deliver()
    [again] = Seen(directory).children().values()
    assert Seen(directory).parent.info.status == "RUNNING"
    report(directory, 1, 1000, perplexity=50.0, state="complete")
    resumed.deliver()
    [ended] = Seen(directory).children().values()

    runs = [running, paused, again, ended]
    assert [run.info.status for run in runs] == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]
    assert [run.data.tags["state"] for run in runs] == ["running", "paused", "running", "complete"]
    assert len({(run.info.run_id, run.info.start_time) for run in runs}) == 1
    assert stopped.info.status == "KILLED"
    assert Seen(directory).history(ended, "training_loss") == [(500, 5.0), (1000, 5.0)]


def test_a_trial_that_waits_has_no_run_yet(results: Path) -> None:
    directory = search(results)
    directory.record("trial", trial=1, params={"window": 40}, costs={"flops_per_token": 1.0})
    tracker = Tracker(directory)
    tracker.deliver()
    assert Seen(directory).children() == {}
    directory.record("running", trial=1)
    tracker.deliver()
    [trial] = Seen(directory).children().values()
    assert trial.data.metrics == {"MFLOPs_per_token": 1e-6}
    assert trial.data.params["window"] == "40"
    assert trial.data.tags["pareto"] == "false"


def test_a_resumed_search_may_have_a_larger_budget(results: Path) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    spec = directory.spec
    directory.change_spec(spec.model_copy(update={"budget": spec.budget.model_copy(update={"trials": 50})}))
    (directory.path / "mlflow.json").unlink()
    assert Tracker(directory).deliver()
    assert Seen(directory).parent.data.params["budget.trials"] == "5"


def test_a_run_that_somebody_deleted_keeps_nothing_else_from_arriving(results: Path) -> None:
    directory = search(results)
    tracker = Tracker(directory)
    complete(directory, 1, perplexity=50.0)
    tracker.deliver()
    [trial] = Seen(directory).children().values()
    Seen(directory).client.delete_run(trial.info.run_id)
    complete(directory, 2, perplexity=40.0)  # the deleted run leaves the front
    assert tracker.deliver()
    assert set(Seen(directory).children()) == Seen(directory).on_front == {"T2"}


def test_a_new_database_gets_everything(results: Path) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    other = results / "other.db"
    empty_database(other)
    directory.change_spec(directory.spec.model_copy(update={"tracking": f"sqlite:///{other}"}))
    Tracker(directory).deliver()
    seen = Seen(directory)
    assert len(seen.children()) == 6
    seen.client.delete_run(seen.parent.info.run_id)
    Tracker(directory).deliver()
    assert len(seen.children()) == 6


def test_two_searches_share_an_experiment_and_nothing_else(results: Path) -> None:
    first, second = rich_search(results), search(results, "second")
    complete(second, 1, perplexity=70.0)
    for directory in (first, second):
        Tracker(directory).deliver()
    assert len(Seen(first).children()) == 6
    assert len(Seen(second).children()) == 1


def test_files_lie_beside_the_search_and_not_in_the_current_folder(
    results: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    directory = rich_search(results)
    tracker = Tracker(directory)
    picture = directory.path / "front.png"
    Image.new("RGB", (1280, 800)).save(picture)
    tracker.log_files([picture])
    tracker.deliver()
    seen = Seen(directory)
    files = {file.path for file in seen.client.list_artifacts(seen.parent.info.run_id)}
    assert files == {"front.png", "front-small.png", "front.json"}
    assert list(elsewhere.iterdir()) == []
    assert tracker.run_url is None


def test_a_first_delivery_makes_the_database_and_prints_nothing(tmp_path: Path) -> None:
    directory = rich_search(tmp_path / "results")
    script = (
        "from pathlib import Path; from recur_tune.searching.directory import SearchDirectory;"
        "from recur_tune.tracking.mlflow import Tracker;"
        f"tracker = Tracker(SearchDirectory(Path({str(directory.path)!r})));"
        "import sys; assert 'mlflow' not in sys.modules; tracker.deliver()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(Seen(directory).children()) == 6


def test_a_server_takes_the_same(results: Path, server: str, server_folder: Path) -> None:
    directory, local = rich_search(results, name="remote", uri=server), rich_search(results, name="local")
    tracker = Tracker(directory)
    assert tracker.run_url is None
    tracker.start()
    assert tracker.close(60) and tracker.problem is None
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
    Tracker(directory).log_files([])
    [model] = seen.client.search_logged_models([seen.experiment])
    assert (model.name, model.status, model.params["window"]) == ("remote-T2", "READY", "42")
    assert {metric.key: metric.value for metric in model.metrics}["perplexity"] == 30.0


def test_what_an_unreachable_server_missed_arrives_later(results: Path, server: str) -> None:
    directory = rich_search(results, name="late", uri=f"http://user:secret@127.0.0.1:{free_port()}")
    tracker = Tracker(directory)
    with pytest.raises(Undelivered) as refused:
        tracker.deliver()
    message = str(refused.value)
    assert "Connection refused" in message and "late" in message and "secret" not in message
    assert message.count(". ") == 0 and message.endswith(".") and "\n" not in message
    assert not (directory.path / "mlflow.json").exists()
    with pytest.raises(Undelivered):
        tracker.log_files([directory.path / "search.yaml"])

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
    assert tracker.close()
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
    assert not tracker.close()
    assert "Connection refused" in str(tracker.problem)
