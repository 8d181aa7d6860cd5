"""Grafana dashboards in Grafana's JSON: one for a single search, one for all.

A query names a metric through `metric`, which refuses a name that is not exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recur_tune.tracking.prometheus.metrics import METRICS, PREFIX

SOURCE = {"type": "prometheus", "uid": "recur-tune"}
_COLUMNS = 24  # of Grafana's grid
_RAY = "ray_"  # Ray's prefix of every metric


def metric(name: str, *conditions: str) -> str:
    """PromQL of a metric of the chosen searches."""
    chosen = ", ".join(['search=~"$search"', *conditions])
    return f"{_RAY}{PREFIX}{METRICS[name].name}{{{chosen}}}"


def _over(how: str, by: str, name: str, *conditions: str) -> str:
    return f"{how} by ({by}) ({metric(name, *conditions)})"


def _total(name: str, *conditions: str) -> str:
    return f"sum({metric(name, *conditions)})"


@dataclass(frozen=True)
class Query:
    """A PromQL expression and its legend."""

    expression: str
    legend: str = "{{search}}"


@dataclass(frozen=True)
class Dashboard:
    """Rows of panels under a title."""

    uid: str
    title: str
    several: bool  # whether more than one search can be chosen at a time
    rows: Sequence[Sequence[dict[str, Any]]]

    def to_json(self) -> dict[str, Any]:
        """As Grafana reads it."""
        return {
            "uid": self.uid, "title": self.title, "tags": ["recur-tune"], "schemaVersion": 39, "version": 1,
            "editable": True, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
            "templating": {"list": [_choice(self.several)]}, "panels": self._panels(),
        }  # fmt: skip

    def _panels(self) -> list[dict[str, Any]]:
        panels: list[dict[str, Any]] = []
        below = 0
        for row in self.rows:
            left, width, height = 0, _COLUMNS // len(row), 4 if row[0]["type"] in ("stat", "gauge") else 8
            for panel in row:
                place = {"x": left, "y": below, "w": width, "h": height}
                panels.append({"id": len(panels) + 1, "gridPos": place, **panel})
                left += width
            below += height
        return panels


def queries(dashboard: Dashboard) -> list[str]:
    """All queries of a dashboard, the choice of searches included."""
    asked = [target["expr"] for row in dashboard.rows for panel in row for target in panel["targets"]]
    return [*asked, _KNOWN]


_KNOWN = f"{_RAY}{PREFIX}{METRICS['budget_share'].name}"


def _choice(several: bool) -> dict[str, Any]:
    query = f"label_values({_KNOWN}, search)"
    return {
        "name": "search", "label": "search", "type": "query", "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": "searches"}, "refresh": 2, "sort": 1,
        "multi": several, "includeAll": several, "allValue": ".*", "current": {},
    }  # fmt: skip


def _panel(kind: str, title: str, text: str, unit: str, *asked: Query, **more: Any) -> dict[str, Any]:
    limits = {name: more.pop(name) for name in ("min", "max") if name in more}
    targets = [
        {"refId": chr(ord("A") + at), "expr": query.expression, "legendFormat": query.legend, "datasource": SOURCE}
        for at, query in enumerate(asked)
    ]
    return {
        "type": kind, "title": title, "description": text, "datasource": SOURCE, "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, **limits, **more}, "overrides": []},
    }  # fmt: skip


def _lines(title: str, text: str, unit: str, *asked: Query, **more: Any) -> dict[str, Any]:
    return _panel("timeseries", title, text, unit, *asked, **more)


def _stacked(title: str, text: str, *asked: Query) -> dict[str, Any]:
    custom = {"fillOpacity": 40, "stacking": {"mode": "normal"}}
    return _lines(title, text, "short", *asked, custom=custom, min=0)


def _number(title: str, text: str, unit: str, query: Query, **more: Any) -> dict[str, Any]:
    return _panel("stat", title, text, unit, query, **more)


def _one_search() -> Dashboard:
    share = _panel(
        "gauge", "Budget spent", "Of its trials or of its time, whichever ends the search first.", "percentunit",
        Query(metric("budget_share")), min=0, max=1,
    )  # fmt: skip
    rows = (
        (
            share,
            _number("Time left", "What the trials so far took on average.", "s", Query(metric("seconds_left"))),
            _number("Hypervolume", "The larger the better.", "percentunit", Query(metric("hypervolume"))),
            _number("On the front", "Trials that no other dominates.", "short", Query(metric("front_trials"))),
            _number(
                "Allocation left", "Until the search's earliest SLURM allocation ends.", "s",
                Query(_over("min", "search", "allocation_seconds_left")),
            ),
        ),
        (
            _stacked("Trials", "How many are in each state.", Query(metric("trials"), "{{state}}")),
            _lines("Hypervolume", "Flat for long: more trials buy little.", "short", Query(metric("hypervolume"))),
            _lines("Quality", "Each trial's latest validation.", "short", Query(metric("quality"), "{{trial}}")),
        ),
        (
            _lines("Tokens per second", "Of running trials.", "short", Query(metric("tokens_per_second"), "{{trial}}")),
            _lines(
                "FLOPs utilisation", "Products per second, of what the trial's device can do.", "percentunit",
                Query(metric("flops_utilisation"), "{{trial}}"), min=0, max=1,
            ),
            _lines(
                "Peak memory", "Predicted and measured, against the limit.", "bytes",
                Query(metric("peak_memory_bytes"), "{{trial}} {{source}}"),
                Query(metric("memory_limit_bytes"), "limit"), min=0,
            ),
        ),
        (
            _lines(
                "Progress of trials", "Of their tokens.", "percentunit", Query(metric("trial_share"), "{{trial}}"),
                min=0, max=1,
            ),
            _lines("Training loss", "Nats per token.", "short", Query(metric("training_loss"), "{{trial}}")),
            _stacked(
                "Rungs", "Trials pruned, paused and continued, by the tokens of the rung.",
                Query(metric("rung_decisions"), "{{rung}} {{decision}}"),
            ),
        ),
        (
            _stacked("Failures by cause", "Failed, or refused for a limit.", Query(metric("failures"), "{{cause}}")),
            _lines(
                "Pretraining of a base", "How much is done, and its loss, while a search is being prepared.", "short",
                Query(metric("base_share"), "share done"), Query(metric("base_loss"), "loss"), min=0,
            ),
            _stacked("SLURM allocations", "Running and in the queue.", Query(metric("allocations"), "{{state}}")),
        ),
    )  # fmt: skip
    return Dashboard("recur-tune-search", "recur-tune: a search", several=False, rows=rows)


def _all_searches() -> Dashboard:
    rows = (
        (
            _number("Trials running", "Of all searches.", "short", Query(_total("trials", 'state="running"'))),
            _number("Tokens per second", "Together.", "short", Query(_total("tokens_per_second"))),
            _number("Failures", "Trials that failed or did not fit.", "short", Query(_total("failures"))),
            _number(
                "Waiting in the queue", "SLURM allocations.", "short",
                Query(_total("allocations", 'state="waiting"')),
            ),
        ),
        (
            _lines("Budget spent", "By search.", "percentunit", Query(metric("budget_share")), min=0, max=1),
            _lines("Hypervolume", "Compares where references are equal.", "short", Query(metric("hypervolume"))),
            _lines("Tokens", "Trained on so far.", "short", Query(metric("tokens"))),
        ),
        (
            _lines(
                "Tokens per second", "By search.", "short",
                Query(_over("sum", "search", "tokens_per_second")),
            ),
            _lines(
                "FLOPs utilisation", "The mean of running trials.", "percentunit",
                Query(_over("avg", "search", "flops_utilisation")), min=0, max=1,
            ),
            _lines(
                "Peak memory", "The largest of running trials.", "bytes",
                Query(_over("max", "search", "peak_memory_bytes")), min=0,
            ),
        ),
        (
            _stacked("Failures by cause", "Of all searches.", Query(_over("sum", "cause", "failures"), "{{cause}}")),
            _lines("Time left", "Estimated.", "s", Query(metric("seconds_left"))),
            _lines(
                "Allocation time left", "By SLURM job.", "s",
                Query(metric("allocation_seconds_left"), "{{search}} {{job}}"),
            ),
        ),
    )  # fmt: skip
    return Dashboard("recur-tune-searches", "recur-tune: all searches", several=True, rows=rows)


DASHBOARDS: tuple[Dashboard, ...] = (_one_search(), _all_searches())
