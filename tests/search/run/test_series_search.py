"""A whole search of a series on Ray: bodies that are made from nothing, and a file that needs no tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

import recur_tune
from recur_tune.cluster.connection import Cluster
from tests.cli.run import run as command
from tests.database import empty_database
from tests.search.run.searches import ONE_AT_A_TIME, assert_settled
from tests.series import waves, write_series

pytestmark = pytest.mark.ray


def test_a_series_has_a_front_of_error_against_cost(cluster: Cluster, tmp_path: Path) -> None:
    empty_database(tmp_path / "mlflow.db")
    space = {
        "corpus": f"series:{write_series(tmp_path / 'a.csv', waves(400))}", "horizon": 6, "patch": 6,
        "recurrence": {
            "none": {"body": ["patches", "dlinear"]},
            "cache": {"cache_rows": 4, "cache_sinks": 1, "cache_join": "softmax", "cache_layer": "all"},
        },
        "window": 24, "bptt_windows": 2, "batch": 2, "body_width": 16, "body_heads": 2, "body_layers": 1,
        "learning_rate": 5e-3, "validation_tokens": 200,
    }  # fmt: skip
    plain = [{"recurrence": "none", "body": body} for body in ("patches", "dlinear")]
    spec = {
        "space": space, "objectives": ["mse", "flops_per_token"], "first": plain,
        "budget": {"tokens": 600, "trials": 3, "rungs": 1}, "tracking": f"sqlite:///{tmp_path}/mlflow.db",
        "sampler": {"name": "random"}, "resources": {"cpus": ONE_AT_A_TIME},
    }  # fmt: skip
    found = recur_tune.search(spec, name="series", results=tmp_path / "results")
    trials = found.state.trials.values()
    assert {trial.state for trial in trials} == {"complete"}
    bodies = {trial.params.get("body", "patches") for trial in trials}
    assert {trial.params["recurrence"] for trial in trials} == {"none", "cache"} and bodies == {"patches", "dlinear"}
    assert all(trial.value("mse") > 0 for trial in trials)
    assert_settled(found.directory)
    report = command("report", "series", "--results", tmp_path / "results", "--out", tmp_path / "report.html")
    assert report.code == 0, report.err
    assert "with dlinear, patches on series:" in (tmp_path / "report.html").read_text()
