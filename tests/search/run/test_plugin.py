"""A recurrence from another package is searched, reported and exported; `tests.extending` has the single commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from recur_tune.cluster.connection import DASHBOARD
from tests.extending import commands, install
from tests.search.run.searches import ONE_AT_A_TIME, make_world


@pytest.mark.ray
def test_a_mechanism_of_another_package_is_searched_reported_and_exported(tmp_path: Path) -> None:
    install("adding-a-recurrence", tmp_path)
    make_world(tmp_path)
    trial = {
        "base": str(tmp_path / "base"), "corpus": f"text:{tmp_path / 'text'}", "window": 16, "bptt_windows": 2,
        "batch": 2,
        "validation_tokens": 500,
    }  # fmt: skip
    space = {
        "objectives": ["perplexity", "flops_per_token"], "budget": {"trials": 3, "rungs": 1, "tokens": 512},
        "space": {**trial, "recurrence": {"none": None, "last": {"last_rows": [1, 2]}}, "learning_rate": [1e-3, 2e-3]},
        "first": [{"recurrence": "last", "last_rows": 2, "learning_rate": 1e-3}], "keep": "all",
        "tracking": f"sqlite:///{tmp_path / 'mlflow.db'}", "resources": {"cpus": ONE_AT_A_TIME},
    }  # fmt: skip
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    place = ["--results", str(tmp_path / "results")]
    commands(
        tmp_path,
        {
            "search": ["search", "space.yaml", "--name", "mine", *place],
            "report": ["report", "mine", *place, "--out", "page.html"],
            "export": ["export", "mine", "--trial", "T1", *place, "--to", "model"],
        },
        **{DASHBOARD: "off"},
    )

    events = map(json.loads, (tmp_path / "results" / "mine" / "events.jsonl").read_text().splitlines())
    trials = [event["params"]["recurrence"] for event in events if event["kind"] == "trial"]
    assert trials[:2] == ["none", "last"] and len(trials) == 3
    assert "last" in (tmp_path / "page.html").read_text()
    assert {"last_rows_model.py", "models_bodies_gpt2.py"} <= {file.name for file in (tmp_path / "model").iterdir()}
