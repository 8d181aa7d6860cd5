"""A recurrence from another package: an entry point is all that it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from recur_tune.recurrences.registry import MARKS, MECHANISMS

ROOT = Path(__file__).parents[2]
TOY = """
    from pydantic import BaseModel, ConfigDict, Field, PositiveInt
    from recur_tune.recurrences.registry import Mechanism, Work

    class ToySpec(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)
        toy_rank: PositiveInt = Field(4, description="columns of the toy")

    def flops(spec, shape, windowing):
        return 2.0 * windowing.size * shape.hidden * spec.toy_rank

    TOY = Mechanism(
        name="toy", spec=ToySpec, module="toy:Toy", summary="keeps a few columns", flops=flops,
        work=lambda *given: Work(flops(*given), 0.0), state_floats=lambda spec, shape: shape.hidden * spec.toy_rank,
    )
"""


def install(folder: Path, code: str) -> None:
    """What pip would leave of a package."""
    (folder / "toy.py").write_text(dedent(code))
    about = folder / "toy-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[recur_tune.recurrences]\ntoy = toy:TOY\n")


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, *words], env=os.environ | {"PYTHONPATH": places}, capture_output=True, text=True
    )


def test_its_fields_are_flags_parameters_of_a_space_and_costs(tmp_path: Path) -> None:
    install(tmp_path, TOY)
    program = """
        import json, sys
        from click.testing import CliRunner
        from recur_tune.cli.main import cli
        from recur_tune.cost.descriptors import COSTS
        from recur_tune.cost.flops import flops_per_token
        from recur_tune.recurrences.registry import MARKS
        from recur_tune.search.record.space_parsing import read_space
        from recur_tune.common.shape import shape_of
        from recur_tune.common.known_shapes import KNOWN_SHAPES
        from recur_tune.config.trial import TrialConfig
        from recur_tune.config.fields import own_fields

        gpt2 = shape_of({"model_type": "gpt2", **KNOWN_SHAPES["gpt2"]})
        toy, plain = (TrialConfig(recurrence=kind, toy_rank=5, window=100) for kind in ("toy", "none"))
        space = read_space({"recurrence": {"none": None, "toy": {"toy_rank": [1, 2]}, "memory": None}})
        print(json.dumps({
            "help": CliRunner().invoke(cli, ["train", "--help"]).output,
            "flops": 100 * (flops_per_token(toy, gpt2) - flops_per_token(plain, gpt2)),
            "corners": [fields.get("toy_rank") for fields in space.corners()],
            "own": [name for name in own_fields(toy) if name in ("toy_rank", "width", "trainable")],
            "entering": [cost for cost in COSTS if "toy_rank" in COSTS[cost].fields],
            "mark": MARKS["toy"], "torch": "torch" in sys.modules,
        }))
    """
    done = python(tmp_path, "-c", dedent(program))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    shown = " ".join(told["help"].split())
    assert "--toy-rank INTEGER columns of the toy (toy). [default: 4]" in shown
    assert f"--recurrence none|{'|'.join(MECHANISMS)}|toy" in shown and "'toy' keeps a few columns" in shown
    assert told["flops"] == pytest.approx(2 * 100 * 768 * 5)
    assert told["corners"] == [None, 1, None, 2] and told["own"] == ["toy_rank", "trainable"]
    costs = ["flops_per_token", "training_flops_per_token", "peak_memory", "inference_memory", "parameters"]
    assert told["entering"] == costs
    taken = {part for mark in MARKS.values() for part in mark}
    assert told["mark"][0] == "toy" and not taken & set(told["mark"]) and not told["torch"]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import nothing_of_that_name", "'toy' of toy cannot be loaded (ModuleNotFoundError: No module named"),
        (TOY.replace("toy_rank", "embeddings"), "'toy' of toy has a field 'embeddings' of another type, default or"),
        (TOY.replace("toy_rank", "batch"), "'toy' has a field 'batch', which every trial has; rename it."),
    ],
    ids=["broken", "clash", "common"],
)
def test_one_that_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path, code: str, problem: str) -> None:
    install(tmp_path, code)
    done = python(tmp_path, "-m", "recur_tune.cli.main", "data", "list")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"recur-tune: recurrence: {problem}")
