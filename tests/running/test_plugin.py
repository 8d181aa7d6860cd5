"""A recurrence from another package goes the whole way: cost, training, evaluation, search, report and export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from tests.running.searches import make_world

ROOT = Path(__file__).parents[2]
DESCRIPTION = """
    from pydantic import BaseModel, Field, PositiveInt
    from recur_tune.recurrences import Mechanism

    class LastSpec(BaseModel, frozen=True):
        last_rows: PositiveInt = Field(2, description="rows of the last layer that are kept")

    LAST = Mechanism("last", LastSpec, "last_model:Last", "shows the first layer the end of the window before")
"""
MODULE = """
    import torch
    from recur_tune.model.recurrence import Passage, Recurrence

    class LastRows(Passage):
        def __init__(self, last, state):
            self.last, self.state, self.seen = last, state, []

        def inserted(self, layer):
            return self.state[0] * self.last.gain if self.state is not None and layer == 0 else None

        def observe(self, layer, output):
            if layer == self.last.shape.layers - 1:
                self.seen.append(output)

        def close(self):
            return (torch.cat(self.seen, dim=1)[:, -self.last.rows :],)

        def reorder(self, lane_B):
            self.seen = [one[lane_B] for one in self.seen]

    class Last(Recurrence):
        def __init__(self, shape, last_rows=2):
            super().__init__(shape)
            self.rows, self.gain = last_rows, torch.nn.Parameter(torch.ones(shape.hidden))

        def empty(self, lanes):
            return (self.gain.new_zeros(lanes, self.rows, self.shape.hidden),)

        def open(self, state, fresh_B, in_parts):
            return LastRows(self, state)
"""


def commands(folder: Path, *words: str) -> dict:
    """What a command says as JSON, or nothing."""
    places = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "recur_tune.cli.main", *words],
        cwd=folder, env=os.environ | {"PYTHONPATH": places}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in words else {}


@pytest.mark.ray
def test_a_mechanism_of_another_package_goes_the_whole_way(tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(dedent(DESCRIPTION))
    (tmp_path / "last_model.py").write_text(dedent(MODULE))
    about = tmp_path / "last-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: last\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[recur_tune.recurrences]\nlast = last:LAST\n")
    make_world(tmp_path)
    trial = {
        "base": str(tmp_path / "base"), "corpus": f"text:{tmp_path / 'text'}", "window": 16, "windows": 2, "batch": 2,
        "tokens": 512, "validation_tokens": 500,
    }  # fmt: skip
    flags = [word for name, value in trial.items() for word in (f"--{name.replace('_', '-')}", str(value))]

    costs = [commands(tmp_path, "cost", *flags, "--recurrence", kind, "--json") for kind in ("none", "last")]
    # Two rows become keys and values; attention is charged for a whole square, which grows by them.
    hidden, rows = 16, 2
    added = rows * 2 * 2 * hidden * hidden + ((16 + rows) ** 2 - 16**2) * 2 * 2 * hidden
    assert 16 * (costs[1]["flops_per_token"] - costs[0]["flops_per_token"]) == pytest.approx(added)
    assert costs[1]["recurrence_parameters"] == hidden
    assert costs[1]["inference_memory"] - costs[0]["inference_memory"] == rows * hidden * 4

    commands(tmp_path, "train", *flags, "--recurrence", "last", "--last-rows", "3", "--out", "run")
    assert yaml.safe_load((tmp_path / "run" / "trial.yaml").read_text())["last_rows"] == 3
    assert commands(tmp_path, "eval", "run", "--json")["tokens"] > 0

    space = {
        "objectives": ["perplexity", "flops_per_token"], "budget": {"trials": 3, "tokens": trial.pop("tokens")},
        "space": {**trial, "recurrence": {"none": None, "last": {"last_rows": [1, 2]}}, "learning_rate": [1e-3, 2e-3]},
    }  # fmt: skip
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    place = ("--results", str(tmp_path / "results"))
    commands(
        tmp_path,
        "search",
        "space.yaml",
        "--name",
        "mine",
        *place,
        "--set",
        f"tracking=sqlite:///{tmp_path / 'mlflow.db'}",
    )
    trials = [json.loads(line) for line in (tmp_path / "results" / "mine" / "events.jsonl").read_text().splitlines()]
    kinds = {event["params"]["recurrence"] for event in trials if event["kind"] == "trial"}
    assert kinds == {"none", "last"}
    commands(tmp_path, "report", "mine", *place, "--out", str(tmp_path / "page.html"))
    assert "last" in (tmp_path / "page.html").read_text()
    number = next(e["trial"] for e in trials if e["kind"] == "trial" and e["params"]["recurrence"] == "last")
    commands(tmp_path, "export", "mine", "--trial", f"T{number}", *place, "--to", str(tmp_path / "model"))
    script = """
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("model", trust_remote_code=True)
print(type(model.recurrence).__name__, model.generation_config is not None)
"""
    shown = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["Last", "True"]
