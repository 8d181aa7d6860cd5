"""Whole searches on a real Ray cluster, in both lanes, with what can happen to a worker."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
from mlflow import MlflowClient
from optuna.trial import TrialState

import recur_tune
from recur_tune.api.outputs import OUTPUTS
from recur_tune.api.result import SearchResult
from recur_tune.cluster.capacity import TrialResources
from recur_tune.cluster.connection import Cluster
from recur_tune.cluster.liveness import ClusterWatchdog
from recur_tune.search.propose.optuna_study import study_storage
from recur_tune.search.record.directory import MODEL, SearchDirectory
from recur_tune.search.record.state import ENDED, SearchState
from recur_tune.search.record.tracking_place import tracking_uri
from recur_tune.search.run.callback import DriverCallback
from recur_tune.search.run.driver import fit, run_search
from recur_tune.search.run.preparation import Prices
from recur_tune.search.run.searcher import OptunaSearcher
from recur_tune.search.run.trainable import run_trial
from recur_tune.tracking.prometheus.exporter import exporting
from tests.cli.run import Outcome
from tests.cli.run import run as command
from tests.search.run.searches import ALIKE, ONE_AT_A_TIME, assert_settled, events_of, held, small_fields, small_spec
from tests.search.run.short_of_memory import short_of_memory
from tests.search.run.train_page import train_runs, workers_of_latest_start
from tests.waiting import until

pytestmark = pytest.mark.ray


@dataclass(frozen=True)
class Searched:
    """A search from Python that was given more trials after its end, which many tests look at."""

    half: SearchState
    result: SearchResult


@pytest.fixture(scope="module")
def both(cluster: Cluster, world: Path, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    results = tmp_path_factory.mktemp("results")

    def search(trials: int) -> SearchResult:
        settings = {"budget.trials": trials, "limits": {"flops_per_token": "25k"}, "resources.cpus": ONE_AT_A_TIME}
        return recur_tune.search(small_fields(world), name="first", results=results, settings=settings)

    return Searched(search(4).state, search(8))


@pytest.fixture
def searched(both: Searched) -> SearchResult:
    return both.result


def test_a_cluster_of_ones_own_can_go_without_a_dashboard(cluster: Cluster) -> None:
    assert cluster.dashboard is None


def test_a_search_trains_its_budget_and_ends(searched: SearchResult) -> None:
    state = searched.state
    assert state.status == "finished"
    assert state.trained == 8
    assert {"complete"} <= {trial.state for trial in state.trials.values()} <= {"complete", "pruned", "infeasible"}
    assert {trial.role for trial in state.trials.values()} == {"baseline", "paper", ""}
    assert_settled(searched.directory)


def test_while_it_runs_it_says_what_the_rest_is_expected_to_add(searched: SearchResult) -> None:
    outlooks = events_of(searched.directory, "outlook")
    assert outlooks and all(0 <= one["low"][-1] <= one["expected"][-1] <= one["high"][-1] < 1 for one in outlooks)


def test_the_front_is_a_table_with_objectives_and_parameters(searched: SearchResult) -> None:
    front = searched.front
    assert len(front) >= 1
    assert {"trial", "token_perplexity", "flops_per_token", "peak_memory", "window", "learning_rate"} <= set(
        front.columns
    )
    assert front["token_perplexity"].is_monotonic_increasing
    assert len(searched.trials) == len(searched.state.trials)
    assert 0 < (searched.hypervolume or 0) < 1


def test_the_front_holds_the_complete_trials_that_no_other_beats(searched: SearchResult) -> None:
    names = ["token_perplexity", "flops_per_token", "peak_memory"]
    found = searched.trials[searched.trials["state"] == "complete"].set_index("trial")[names]
    unbeaten = [
        name for name, own in found.iterrows() if not ((found <= own).all(axis=1) & (found < own).any(axis=1)).any()
    ]
    assert sorted(searched.front["trial"]) == sorted(unbeaten)


def test_what_breaks_a_limit_is_never_trained(searched: SearchResult) -> None:
    trained = [trial for trial in searched.state.trials.values() if trial.tokens]
    assert trained and all(trial.costs["flops_per_token"] <= 25_000 for trial in trained)


def test_models_are_kept_on_the_front_alone(searched: SearchResult) -> None:
    kept = {path.parent.name for path in searched.directory.path.glob(f"trials/*/{MODEL}")}
    assert kept == {str(number) for number in searched.front["number"]}
    assert not list(searched.directory.path.glob("trials/*/resume"))


def test_mlflow_alone_gives_the_front_that_the_command_prints(searched: SearchResult) -> None:
    directory = searched.directory
    printed = command("front", "first", "--results", directory.path.parent, "--json")
    assert printed.code == 0
    rows = json.loads(printed.out)["front"]
    client = MlflowClient(tracking_uri(directory))
    experiment = client.get_experiment_by_name("recur-tune")
    assert experiment is not None
    [parent] = client.search_runs([experiment.experiment_id], "run_name = 'first'")
    below = f"tags.pareto = 'true' and tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    runs = client.search_runs([experiment.experiment_id], below)
    units = {"token_perplexity": ("token_perplexity", 1), "flops_per_token": ("MFLOPs_per_token", 1e6),
             "peak_memory": ("peak_memory_MiB", 2**20)}  # fmt: skip
    assert {run.info.run_name for run in runs} == {row["trial"] for row in rows}
    for run in runs:
        row = next(row for row in rows if row["trial"] == run.info.run_name)
        for name, (metric, unit) in units.items():
            assert run.data.metrics[metric] * unit == pytest.approx(row[name], rel=1e-4), "five digits"
        for name, value in row["params"].items():
            told = run.data.params[name]
            assert float(told) == pytest.approx(value, rel=1e-4) if isinstance(value, float) else told == str(value)
    names = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"front.json", "front.png", "front.html"} <= names
    assert parent.data.metrics["hypervolume"] == pytest.approx(searched.hypervolume, rel=1e-4)
    models = client.search_logged_models([experiment.experiment_id], "tags.pareto = 'true' and tags.search = 'first'")
    assert {model.source_run_id for model in models} == {run.info.run_id for run in runs}
    assert all(Path(model.tags["recur_tune.folder"], "config.json").is_file() for model in models)


def test_a_model_of_the_front_can_be_exported_and_scored(
    searched: SearchResult, tmp_path: Path, experiment: Callable[..., None]
) -> None:
    results, best = searched.directory.path.parent, searched.front["trial"][0]
    assert command("export", "first", "--trial", best, "--to", tmp_path / "m", "--results", results).code == 0
    scored = command("eval", tmp_path / "m", "--split", "test", "--json")
    assert scored.code == 0
    front, trials = tmp_path / "front.json", tmp_path / "trials.csv"
    experiment("front_on_test", searched.directory.path, "--out", front, "--trials", trials)
    [row] = [row for row in json.loads(front.read_text()) if row["trial"] == best]
    assert row["scores"]["test"]["own"]["loss"] == pytest.approx(json.loads(scored.out)["loss"], rel=1e-5)
    assert [line.split(",")[0] for line in trials.read_text().splitlines()] == ["trial", *searched.trials["trial"]]


def test_more_trials_go_on_where_it_ended(both: Searched) -> None:
    assert (both.half.status, both.half.trained) == ("finished", 4)
    assert {number: both.result.state.trials[number] for number in both.half.trials} == both.half.trials
    statuses = [event["status"] for event in events_of(both.result.directory, "search")]
    assert statuses == ["preparing", "started", "finished"] * 2


def test_a_front_is_confirmed_by_other_seeds_on_unseen_text(both: Searched) -> None:
    directory, front = both.result.directory, set(both.result.front["trial"])
    words = ["confirm", "first", "--seeds", 2, "--results", directory.path.parent]
    confirmed = command(*words, "--json")
    assert confirmed.code == 0, confirmed.err
    points = {point["trial"]: point for point in json.loads(confirmed.out)["points"]}
    assert front <= set(points)
    for point in points.values():
        assert point["seeds"] == 2 and point["values"][0] != point["values"][1]
        assert point["standard_error"] > 0
    state = directory.state()
    assert (state.status, state.trained) == ("finished", 8), "repetitions are nothing that a budget pays for"
    assert {one.state for one in state.repeats.values()} == {"complete"}, "none is pruned"
    assert {row["trial"] for row in json.loads((directory.path / "front.json").read_text())} == front
    assert (directory.path / "confirmed.png").exists() and (directory.path / "confirmed.json").exists()
    assert not [one for one in state.repeats if (directory.trial(one) / MODEL).exists()]
    assert_settled(directory)

    begun = len(events_of(directory, "running"))
    again = command(*words)
    assert again.code == 0 and "0 trainings to do" in again.err
    assert len(events_of(directory, "running")) == begun, "what is there is not trained twice"


def test_a_trial_of_ones_own_is_trained_beyond_the_budget(both: Searched) -> None:
    directory = both.result.directory
    fixed = ["--set", "window=16", "--set", "overlap=0", "--set", "recurrence=none", "--set", "learning_rate=0.0042"]
    for _ in range(2):  # the second is the first over again
        assert command("add", "first", *fixed, "--results", directory.path.parent).code == 0
    before = directory.state().trained
    state = run_search(directory, OUTPUTS)
    added = [trial for trial in state.trials.values() if trial.role == "added"]
    assert [(trial.params["window"], trial.params["learning_rate"]) for trial in added] == [(16, 0.0042)]
    assert state.trained == before + 1 and state.status == "finished"
    assert any(f"is {added[0].name} already" in notice for notice in state.notices)
    assert_settled(directory)


def reports_of(directory: SearchDirectory, number: int) -> dict[int, dict[str, float]]:
    """A trial's validations by its tokens; a worker that was lost may have told one twice."""
    return {event["tokens"]: event["validation"] for event in events_of(directory, "report")
            if event["trial"] == number and event.get("validation")}  # fmt: skip


def trained_here(directory: SearchDirectory, number: int, folder: Path) -> dict[int, dict[str, float]]:
    """The same of that trial trained once more, in this process and without Ray."""
    config = directory.spec.trial_config(directory.state().trials[number].params)
    own = folder / "alone" / "trials" / "0"
    own.mkdir(parents=True)
    said: list[dict[str, Any]] = []
    run_trial({"folder": str(own), "trial": config.plain_values()}, said.append)
    return {message["tokens"]: message["validation"] for message in said if message.get("validation")}


def test_an_actors_numbers_are_those_of_training_without_ray(searched: SearchResult, tmp_path: Path) -> None:
    number = int(searched.front["number"].iloc[0])
    told = reports_of(searched.directory, number)
    assert told == trained_here(searched.directory, number, tmp_path)
    assert len(told) == 2


def kill_when(
    directory: SearchDirectory,
    ready: Callable[[dict[str, Any]], bool],
    worker: Callable[[dict[str, Any]], int] = lambda report: int(report["worker"].partition(":")[2]),
) -> threading.Thread:
    """Kill the worker of the first report that is ready for it, as a lost machine would; or another process."""

    def reported() -> list[dict[str, Any]]:
        return [event for event in events_of(directory, "report") if ready(event)]

    def watch() -> None:
        report, *_ = until(reported, "a report of a worker to kill", pause=0.02)
        with held(report["worker"]):  # its trial does not end before the other is known
            os.kill(worker(report), signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def midway(event: dict[str, Any]) -> bool:
    return bool(event.get("validation")) and "state" not in event


def test_a_trial_is_ended_by_hand_and_a_killed_actor_costs_only_time(
    cluster: Cluster, world: Path, tmp_path: Path
) -> None:
    budget = {"budget__trials": 3, "budget__tokens": 12_000, "budget__rungs": 4, "budget__reduction": 2}
    spec = small_spec(world, **ALIKE, **budget, resources__cpus=ONE_AT_A_TIME)
    directory = SearchDirectory.create(tmp_path, "killed", spec)
    said: list[Outcome] = []

    def end_the_first() -> None:
        [report, *_] = until(lambda: events_of(directory, "report"), "a report of the first trial", pause=0.02)
        with held(report["worker"]):
            said.append(command("end", "killed", "T0", "--results", tmp_path))

    thread = threading.Thread(target=end_the_first, daemon=True)
    thread.start()
    killer = kill_when(directory, lambda event: event["trial"] > 0 and midway(event))
    state = run_search(directory, OUTPUTS)
    thread.join()
    killer.join()
    assert state.trials[0].state == "pruned" and state.trials[0].tokens < 12_000
    assert "ended by hand" in state.trials[0].reason
    assert said[0].code == 0 and "T0 is pruned." in said[0].err
    assert state.status == "finished"
    assert {trial.state for trial in state.trials.values()} <= {"complete", "pruned"}
    starts = [event["trial"] for event in events_of(directory, "running")]
    assert len(starts) == 4  # one of the three trials started twice, and went on from its checkpoint
    again = max(starts, key=starts.count)
    reasons = [event.get("after") for event in events_of(directory, "running") if event["trial"] == again]
    assert reasons[0] is None
    # On a busy machine Ray gives up on an actor before it hears of its death.
    assert re.search("actor died|is unavailable", str(reasons[1]))
    tokens = [event["tokens"] for event in events_of(directory, "report") if event["trial"] == again]
    assert tokens == sorted(tokens)
    assert_settled(directory)


def test_two_workers_train_a_trial_and_survive_the_loss_of_either(
    cluster: Cluster, world: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        **ALIKE, "budget__trials": 2, "budget__tokens": 12_000, "budget__rungs": 4, "resources__workers": 2,
        "resources__cpus": 1, "space__learning_rate": 0.003,
    }  # fmt: skip
    directory = SearchDirectory.create(tmp_path, "two", small_spec(world, **changes))
    killers = [
        kill_when(directory, lambda report: report["trial"] == 0 and midway(report)),
        kill_when(
            directory,
            lambda report: report["trial"] == 1 and midway(report),
            worker=lambda report: until(lambda: workers_of_latest_start("two"), "both workers in Ray Train's list")[1],
        ),
    ]
    state = run_search(directory, OUTPUTS)
    for killer in killers:
        killer.join()
    assert state.trials[0].state == "complete" and state.trials[1].state in ENDED - {"failed"}
    workers = list(dict.fromkeys(event["worker"] for event in events_of(directory, "report")))
    of_second = [event["worker"] for event in events_of(directory, "report") if event["trial"] == 1]
    assert len(workers) == 3 and workers[1] == of_second[0], "each start has another, who stays for the next trial"
    assert [event["trial"] for event in events_of(directory, "running")] == [0, 1], "Ray Train has handled both"
    assert sum("its workers were started again" in notice for notice in state.notices) == 2
    assert len(train_runs("two")) == 1, "the page of Ray's dashboard has one run, with all trials"
    assert_settled(directory)
    told, alone = reports_of(directory, 0), trained_here(directory, 0, tmp_path)
    assert told.keys() == alone.keys() and len(told) >= 4
    for tokens, validation in told.items():
        assert validation == pytest.approx(alone[tokens], rel=1e-5), "workers add up in another order, and no more"


def train_with(directory: SearchDirectory, train: Callable[[dict[str, Any]], None], allotment: TrialResources) -> None:
    """A search whose trials are trained by a function of the test."""
    with directory.hold_lease():
        log = directory.open_log()
        searcher = OptunaSearcher(directory.spec, log, Prices(), room=lambda: allotment.at_once + 1)
        with exporting(directory, directory.spec) as exporter:
            callback = DriverCallback(directory.spec, log, lambda: False, exporter, ClusterWatchdog(lambda loss: None))
            fit(directory.spec, log, allotment, searcher, train, callback)


def test_out_of_memory_ends_one_trial_and_replaces_its_actor(cluster: Cluster, world: Path, tmp_path: Path) -> None:
    directory = SearchDirectory.create(tmp_path, "memory", small_spec(world, budget__trials=3))
    train_with(directory, short_of_memory, TrialResources(2.0, 0.0, 1))
    state = directory.state()
    assert [trial.state for trial in state.trials.values()][:3] == ["complete", "infeasible", "complete"]
    assert state.trials[1].reason == "out of memory on its device"
    workers = [state.trials[number].worker for number in (0, 1, 2)]
    assert workers[0] == workers[1] != workers[2]
    study = optuna.load_study(study_name="memory", storage=study_storage(directory.path))
    assert study.trials[1].state == TrialState.PRUNED
    assert study.trials[1].constraints["trainable"] > 0
