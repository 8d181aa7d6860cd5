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

from recur_tune.sites.ray.cluster import DASHBOARD
from tests.forked import HOOK
from tests.search.run.searches import ONE_AT_A_TIME, make_world

ROOT = Path(__file__).parents[3]
DESCRIPTION = """
    from pydantic import BaseModel, Field, PositiveInt
    from recur_tune.recurrences.registry import Mechanism

    class LastSpec(BaseModel, frozen=True):
        last_rows: PositiveInt = Field(2, description="rows of the last layer that are kept")

    LAST = Mechanism("last", LastSpec, "last_model:Last", "shows the first layer the end of the window before")
"""
MODULE = """
    import torch
    from recur_tune.recurrences.seam import WindowPass, Recurrence

    class LastRows(WindowPass):
        def __init__(self, last, state):
            self.last, self.state, self.seen = last, state, []

        def inserted(self, layer):
            return self.state[0] * self.last.gain if self.state is not None and layer == 0 else None

        def observe(self, layer, output):
            if layer == self.last.shape.layers - 1:
                self.seen.append(output)

        def close(self, overlap, behind):
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


# One process for all commands: each would load torch again.
PROGRAM = """
import json, sys
from click.testing import CliRunner
from recur_tune.cli.main import cli

said = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, (words, done.stderr)
    said.append(done.stdout)
print(json.dumps(said))
"""


def commands(folder: Path, *all_words: list[str]) -> list[str]:
    """What each command says on stdout."""
    places = os.pathsep.join([str(folder), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": places, DASHBOARD: "off"}
    env.pop(HOOK, None)  # the fork server has looked for packages before this one was there
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(all_words)], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


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
        "base": str(tmp_path / "base"), "corpus": f"text:{tmp_path / 'text'}", "window": 16, "bptt_windows": 2,
        "batch": 2,
        "tokens": 512, "validation_tokens": 500,
    }  # fmt: skip
    flags = [word for name, value in trial.items() for word in (f"--{name.replace('_', '-')}", str(value))]

    space = {
        "objectives": ["perplexity", "flops_per_token"], "budget": {"trials": 3, "rungs": 1, "tokens": 512},
        "space": {**trial, "recurrence": {"none": None, "last": {"last_rows": [1, 2]}}, "learning_rate": [1e-3, 2e-3]},
        "first": [{"recurrence": "last", "last_rows": 2, "learning_rate": 1e-3}], "keep": "all",
        "tracking": f"sqlite:///{tmp_path / 'mlflow.db'}", "resources": {"cpus": ONE_AT_A_TIME},
    }  # fmt: skip
    del space["space"]["tokens"]
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    place = ["--results", str(tmp_path / "results")]
    *costs, _, evaluated, _, _, _ = commands(
        tmp_path,
        *(["cost", *flags, "--recurrence", kind, "--json"] for kind in ("none", "last")),
        ["train", *flags, "--recurrence", "last", "--last-rows", "3", "--out", "run"],
        ["eval", "run", "--json"],
        ["search", "space.yaml", "--name", "mine", *place],
        ["report", "mine", *place, "--out", "page.html"],
        ["export", "mine", "--trial", "T1", *place, "--to", "model"],
    )

    plain, recurrent = map(json.loads, costs)
    # Two rows become keys and values; attention is charged for a whole square, which grows by them.
    hidden, rows = 16, 2
    added = rows * 2 * 2 * hidden * hidden + ((16 + rows) ** 2 - 16**2) * 2 * 2 * hidden
    assert 16 * (recurrent["flops_per_token"] - plain["flops_per_token"]) == pytest.approx(added)
    assert recurrent["recurrence_parameters"] == hidden
    assert recurrent["inference_memory"] - plain["inference_memory"] == rows * hidden * 4
    assert yaml.safe_load((tmp_path / "run" / "trial.yaml").read_text())["last_rows"] == 3
    assert json.loads(evaluated)["tokens"] > 0
    events = map(json.loads, (tmp_path / "results" / "mine" / "events.jsonl").read_text().splitlines())
    trials = [event["params"]["recurrence"] for event in events if event["kind"] == "trial"]
    assert trials[:2] == ["none", "last"] and len(trials) == 3
    assert "last" in (tmp_path / "page.html").read_text()
    assert {"last_model.py", "models_bodies_gpt2.py"} <= {file.name for file in (tmp_path / "model").iterdir()}
