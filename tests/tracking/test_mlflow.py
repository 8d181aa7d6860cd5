"""What a search's log becomes in MLflow, read back through MLflow's own client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from recur_tune.search.record.front import front_rows, search_hypervolume
from recur_tune.search.record.tracking_place import tracking_uri
from recur_tune.tracking.mlflow.tracker import Tracker
from tests.tracking.tracked import OBJECTIVES, Seen, begin, complete, report, rich_search, search

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
    of_recurrence = {"l_ins", "width", "depth", "pooling", "embeddings", "skip", "recurrence_rate", "trainable"}
    assert recurrent.keys() - plain.keys() == of_recurrence and plain.keys() <= recurrent.keys()


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
    assert paused.data.tags["recur_tune.reason"] == "the search was asked to stop"
    assert not ended.data.tags.get("recur_tune.reason"), "it was not the last word"
    assert Seen(directory).history(ended, "training_loss") == [(500, 5.0), (1000, 5.0)]


def test_runs_of_a_confirmation_are_told_apart_and_a_base_that_is_there_is_whole(results: Path) -> None:
    directory = search(results)
    directory.record("search", status="preparing")
    directory.record("stage", text="pretraining", share=0.75, loss=2.0, tokens=75)
    directory.record("search", status="started")
    complete(directory, 0, 50.0)
    begin(directory, 7, repeats=0, seed=6, split="test")
    Tracker(directory).deliver()
    seen = Seen(directory)
    again = seen.children()["T7 (T0, seed 6)"]
    assert (again.data.tags["recur_tune.repeats"], again.data.tags["recur_tune.seed"]) == ("T0", "6")
    assert "recur_tune.repeats" not in seen.children()["T0"].data.tags
    assert seen.parent.data.metrics["base_share"] == 1.0


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
