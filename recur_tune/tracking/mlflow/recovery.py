"""What MLflow knows of a search's trials, as events of a log that has lost them.

MLflow's numbers have few digits, and its settings are those of a trial without the digits that no one reads. So other
books are believed before it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from recur_tune.common.errors import UserError
from recur_tune.cost.descriptors import COSTS
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.recovery import Book
from recur_tune.search.record.space import checked
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, Event
from recur_tune.search.record.tracking_place import tracking_uri
from recur_tune.tracking.mlflow.calls import children, quiet_client
from recur_tune.tracking.mlflow.runs import EXPERIMENT
from recur_tune.tracking.mlflow.units import metric_name, unit_of

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow import MlflowClient
    from mlflow.entities import Run

_OF_A_SPLIT = ("test_", "validation_")  # scores of repeats
_OF_A_REPORT = ("training_loss", "tokens_per_second", "measured_peak_memory")


def mlflow_book(directory: SearchDirectory, settled: Collection[int]) -> Book:
    """The trials' runs; those of the settled trials are left out, since every metric takes a call."""
    client, spec = quiet_client(tracking_uri(directory)), directory.spec
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return Book("MLflow")
    known = f"tags.`recur_tune.search_id` = '{directory.identity['id']}'"
    found: dict[int, Run] = {}
    for parent in client.search_runs([experiment.experiment_id], known):
        found |= children(client, experiment.experiment_id, parent.info.run_id)
    return Book("MLflow", {n: _events(client, n, run, spec) for n, run in found.items() if n not in settled})


def _events(client: MlflowClient, number: int, run: Run, spec: SearchSpec) -> list[Event]:
    started, tags = run.info.start_time / 1000, run.data.tags
    about: Event = {"trial": number, "time": started}
    events: list[Event] = []
    if params := _params(run.data.params, spec):
        role = {"role": tags["recur_tune.role"]} if tags.get("recur_tune.role") else {}
        costs = {name: run.data.metrics[metric_name(name)] * unit_of(name)
                 for name in COSTS if metric_name(name) in run.data.metrics}  # fmt: skip
        if not role.get("role", "").startswith("seed "):  # a repeat of another trial is trained again
            events.append({**about, "kind": "trial", "params": params, "costs": costs, **role})
    events.append({**about, "kind": "running"})
    events += _reports(client, number, run, spec)
    if (state := tags.get("state")) in ENDED:
        ended = (run.info.end_time or run.info.start_time) / 1000
        reason = tags.get("recur_tune.reason", "")
        if state == "complete" and events[-1]["kind"] == "report":
            events[-1] |= {"state": state}
        elif state != "complete":
            events.append({**about, "time": ended, "kind": "end", "state": state, "reason": reason})
    return events


def _reports(client: MlflowClient, number: int, run: Run, spec: SearchSpec) -> list[Event]:
    """Its validations: metrics by the tokens at which they were measured."""
    costs = {metric_name(name) for name in COSTS}
    validations: dict[int, dict[str, float]] = {}
    times: dict[int, float] = {}
    besides = costs | {metric_name(one) for one in _OF_A_REPORT}
    for name in run.data.metrics.keys() - besides:
        if name.startswith(_OF_A_SPLIT):
            continue
        for metric in client.get_metric_history(run.info.run_id, name):
            validations.setdefault(metric.step, {})[name] = metric.value
            times[metric.step] = metric.timestamp / 1000
    qualities = [name for name in spec.objectives if name not in COSTS]
    return [
        {"trial": number, "time": times[tokens], "kind": "report", "tokens": tokens, "validation": validations[tokens]}
        for tokens in sorted(validations)
        if all(name in validations[tokens] for name in qualities)
    ]


def _params(said: dict[str, str], spec: SearchSpec) -> dict[str, Any]:
    """The fields that the search chose; none where one of them cannot be read."""
    try:
        return {name: checked(name, said[name]) for name in spec.parsed_space.names if name in said}
    except (ValueError, UserError):
        return {}
