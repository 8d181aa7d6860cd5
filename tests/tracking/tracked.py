"""Searches whose log is written by hand, and what MLflow has of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from recur_tune.common.parsing import parse
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.tracking_place import tracking_uri
from tests.waiting import until

OBJECTIVES = ("perplexity", "flops_per_token")


def wait_for(condition: Callable[[], bool]) -> None:
    until(condition, "what the tracker does in its own thread")


def search(results: Path, name: str = "first", uri: str | None = None, **fields: Any) -> SearchDirectory:
    """A search that has just begun."""
    spec = {
        "space": {"base": "tiny", "window": {"from": 32, "to": 64}, "bptt_windows": 4},
        "objectives": OBJECTIVES,
        "budget": {"tokens": 1000, "trials": 5},
        "limits": {"flops_per_token": "1M"},
    }
    directory = SearchDirectory.create(results, name, parse(SearchSpec, spec | {"tracking": uri} | fields))
    directory.record("search", status="started")
    directory.record("reference", values={"perplexity": 100.0, "flops_per_token": 1000.0})
    return directory


def begin(directory: SearchDirectory, number: int, flops: float = 500.0, **fields: Any) -> None:
    directory.record("trial", trial=number, params={"window": 40 + number}, costs={"flops_per_token": flops}, **fields)
    directory.record("running", trial=number)


def report(
    directory: SearchDirectory, number: int, tokens: int, perplexity: float | None = None, **end: Any
) -> None:  # fmt: skip
    validation = perplexity and {"perplexity": perplexity, "bits_per_byte": 2.5, "loss": 4.5}
    directory.record(
        "report", trial=number, tokens=tokens, loss=5.0, tokens_per_second=float("nan"), measured_peak_memory=1 << 20,
        validation=validation, **end,
    )  # fmt: skip


def complete(directory: SearchDirectory, number: int, perplexity: float, flops: float = 500.0, **fields: Any) -> None:
    begin(directory, number, flops, **fields)
    report(directory, number, 500)
    report(directory, number, 1000, perplexity, state="complete")


class Seen:
    """What a client sees of one search."""

    def __init__(self, directory: SearchDirectory) -> None:
        self.client = MlflowClient(tracking_uri(directory))
        self.search_id = directory.identity["id"]
        experiment = self.client.get_experiment_by_name("recur-tune")
        assert experiment is not None
        self.experiment = experiment.experiment_id

    def runs(self, condition: str) -> list[Run]:
        return list(self.client.search_runs([self.experiment], condition))

    @property
    def parent(self) -> Run:
        [run] = self.runs(f"tags.`recur_tune.search_id` = '{self.search_id}'")
        return run

    def children(self, condition: str = "") -> dict[str, Run]:
        """By name; two of one name are an error."""
        found = self.runs(f"tags.mlflow.parentRunId = '{self.parent.info.run_id}'{condition}")
        children = {run.info.run_name: run for run in found}
        assert len(children) == len(found)
        return children

    @property
    def on_front(self) -> set[str]:
        return set(self.children(" and tags.pareto = 'true'"))

    def history(self, run: Run, metric: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in self.client.get_metric_history(run.info.run_id, metric)]

    @property
    def table(self) -> Any:
        return json.loads(Path(self.client.download_artifacts(self.parent.info.run_id, "front.json")).read_text())

    def everything(self) -> Any:
        """All that must not change when the same is delivered again."""
        return [
            (
                run.info.run_id, run.info.status, run.info.start_time, run.info.end_time,
                run.data.params, run.data.tags,
                {metric: self.client.get_metric_history(run.info.run_id, metric) for metric in run.data.metrics},
            )
            for run in [self.parent, *sorted(self.children().values(), key=lambda run: run.info.run_name)]
        ]  # fmt: skip


def rich_search(results: Path, **fields: Any) -> SearchDirectory:
    """Every way in which a trial ends."""
    directory = search(results, **fields)
    complete(directory, 1, perplexity=50.0, role="baseline")
    complete(directory, 2, perplexity=30.0, flops=800.0)
    begin(directory, 3)
    report(directory, 3, 500, perplexity=90.0)
    directory.record("end", trial=3, state="pruned", reason="it was behind at 500 tokens")
    begin(directory, 4)
    directory.record("end", trial=4, state="failed", reason="the loss is not finite" + 9000 * "!")
    directory.record("trial", trial=5, params={"window": 64}, costs={"flops_per_token": 2e6})
    directory.record("end", trial=5, state="infeasible", reason="flops_per_token is over its limit")
    complete(directory, 6, perplexity=40.0)  # better than 1 at the same cost
    directory.record("search", status="finished")
    return directory
