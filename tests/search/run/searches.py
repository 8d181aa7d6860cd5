"""Searches small enough for tests: a base made on the spot, a text of its own, trials of a few seconds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
import psutil
import torch
from mlflow import MlflowClient
from optuna.trial import TrialState

from recur_tune.common.parsing import parse
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.models.pretrained import save_model
from recur_tune.search.propose.optuna_study import study_storage
from recur_tune.search.record.directory import SearchDirectory, dump_spec
from recur_tune.search.record.spec import SearchSpec, with_overrides
from recur_tune.search.record.state import ENDED
from recur_tune.search.record.tracking_place import tracking_uri
from tests.conftest import small_model
from tests.database import empty_database

_OPTUNA_HEARS = {
    "complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED,
    "infeasible": TrialState.PRUNED, "failed": TrialState.FAIL,
}  # fmt: skip
# Cores that leave no room for a second trial, and of two cores give one thread: a second would mostly wait.
ONE_AT_A_TIME = (os.cpu_count() or 1) / 2 + 0.5
# For trials that are met midway: they take about as long as each other, with many small steps, and begin at once: to
# find the most memory takes simulations.
ALIKE: dict[str, Any] = {
    "space__window": 16, "space__overlap": 0, "space__batch": 4, "reference": {"peak_memory": "10MB"},
}  # fmt: skip
_TEXT = "The state of a window is a small vector, and the next window reads it before anything else. "


def make_world(folder: Path, sentences: int = 40) -> None:
    """A random byte-level base in folder/base and a text in folder/text, for searches that start from them; its
    shortest document has so many sentences."""
    torch.manual_seed(0)
    model = small_model(vocab_size=256, n_positions=64, n_layer=2, n_embd=16, n_head=2)
    (folder / "base").mkdir(parents=True)
    save_model(model, load_tokenizer("bytes"), folder / "base")
    empty_database(folder / "mlflow.db")
    for split, documents in (("train", 8), ("validation", 2), ("test", 1)):
        (folder / "text" / split).mkdir(parents=True)
        for number in range(documents):
            (folder / "text" / split / f"{number}.txt").write_text(f"{number}. {_TEXT}" * (sentences + number))


def small_fields(folder: Path) -> dict[str, Any]:
    """A search over both recurrences in that world."""
    return {
        "space": {
            "base": str(folder / "base"),
            "corpus": f"text:{folder / 'text'}",
            "recurrence": {"none": None, "pooled": {"l_ins": [1, 2], "width": {"from": 4, "to": 16, "log": True}}},
            "depth": 1,
            "window": [8, 16, 32],
            "overlap": {"from": 0, "to": 0.5, "step": 0.25, "of": "window"},
            "bptt_windows": 2,
            "batch": 16,
            "warmup_steps": 2,
            "validation_tokens": 1000,
            "learning_rate": {"from": 1e-3, "to": 1e-2, "log": True},
        },
        "objectives": ["token_perplexity", "flops_per_token", "peak_memory"],
        "budget": {"tokens": 4000, "trials": 6, "rungs": 2},
        "tracking": f"sqlite:///{folder}/mlflow.db",  # one for all
    }


def small_spec(folder: Path, **changes: Any) -> SearchSpec:
    """The same, checked; changes go by dotted names with a double underscore, budget__trials=3."""
    dotted = [(name.replace("__", "."), value) for name, value in changes.items()]
    return parse(SearchSpec, with_overrides(small_fields(folder), dotted))


def events_of(directory: SearchDirectory, kind: str) -> list[dict[str, Any]]:
    """The log's lines of one kind."""
    return [event for event, _ in directory.events() if event["kind"] == kind]


@contextmanager
def held(worker: str) -> Iterator[None]:
    """The process that a report named gets no further meanwhile: what is done to its trial, or asked of it, then comes
    in time, however fast one is and slow the other."""
    process = psutil.Process(int(worker.partition(":")[2]))
    process.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):  # it was killed, or its cluster took it along
            process.resume()


def write_space(path: Path, spec: SearchSpec) -> Path:
    """A space as a file, for commands."""
    path.write_text(dump_spec(spec))
    return path


def assert_settled(directory: SearchDirectory) -> None:
    """Nothing is left open anywhere, nothing was done twice, and every book tells the same."""
    state = directory.state()
    everything = [*state.trials.values(), *state.repeats.values()]
    assert all(trial.state in ENDED for trial in everything)
    study = optuna.load_study(study_name=directory.name, storage=study_storage(directory.path))
    told = {trial.number: trial.state for trial in study.get_trials() if trial.state != TrialState.WAITING}
    assert TrialState.RUNNING not in told.values()
    for number, record in state.trials.items():
        assert told[number] == _OPTUNA_HEARS[record.state]
    ended: set[int] = set()
    for event, _ in directory.events():
        if event["kind"] in ("running", "report", "end"):
            assert event["trial"] not in ended, f"T{event['trial']} went on after its end"
            if event.get("state") in ENDED:
                ended.add(event["trial"])
    assert len({json.dumps(trial.params, sort_keys=True) for trial in state.trials.values()}) == len(state.trials)
    assert len({(trial.repeats, trial.seed) for trial in state.repeats.values()}) == len(state.repeats)
    client = MlflowClient(tracking_uri(directory))
    experiment = client.get_experiment_by_name("recur-tune")
    assert experiment is not None
    parents = client.search_runs(
        [experiment.experiment_id], f"tags.`recur_tune.search_id` = '{directory.identity['id']}'"
    )
    assert [run.info.status for run in parents] == ["FINISHED"]
    children = client.search_runs(
        [experiment.experiment_id], f"tags.`mlflow.parentRunId` = '{parents[0].info.run_id}'", max_results=1000
    )
    assert "RUNNING" not in {run.info.status for run in children}
    assert sorted(int(run.data.tags["recur_tune.trial"]) for run in children) == sorted(
        trial.number for trial in everything
    )
