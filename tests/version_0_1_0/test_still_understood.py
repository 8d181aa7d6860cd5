"""What version 0.1.0 wrote is read and continued, with one warning for every name that has changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from pydantic import BaseModel
from transformers import AutoModelForCausalLM

from recur_tune.cli.options import deprecated_option
from recur_tune.common import deprecated
from recur_tune.common.deprecated import DeprecatedName
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.config.trial import TrialConfig
from recur_tune.recurrences import Mechanism
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec, changes_between, with_overrides
from tests.cli.run import run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NEW_NAMES = {"windows": "bptt_windows", "tune": "trainable", "speed": "cuda_graph and fused_kernels"}


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecated, "_warned", set())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, in which commands run."""
    folder = tmp_path / "old"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("*.py[co]", "__pycache__", "test_*"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RECUR_TUNE_RESULTS", str(folder))
    return folder


def sentences(told: str) -> list[str]:
    """Of what a command said, the warnings about old names."""
    return [line for line in told.splitlines() if "the old name goes in version" in line]


def expected(names: dict[str, str]) -> set[str]:
    also = {"windows": " The size of a window is window."}
    return {
        f"{old}: it is called {new} now; the old name goes in version 0.4.0.{also.get(old, '')}"
        for old, new in names.items()
    }


def test_a_trial_file() -> None:
    with pytest.warns(DeprecatedName) as told:
        found = parse(TrialConfig, read_yaml(HERE / "trial.yaml"))
    assert {str(one.message) for one in told} == expected(NEW_NAMES) and len(told) == 3
    assert (found.recurrence, found.bptt_windows, found.trainable) == ("pooled", 3, "recurrence")
    assert (found.cuda_graph, found.fused_kernels) == (True, True)


@pytest.mark.parametrize(
    ("speed", "cuda_graph", "fused_kernels"),
    [("auto", "auto", "auto"), ("plain", False, False), ("replayed", True, False), ("compiled", False, True)],
)
def test_every_speed(speed: str, cuda_graph: Any, fused_kernels: Any) -> None:
    with pytest.warns(DeprecatedName):
        found = parse(TrialConfig, {"speed": speed})
    assert (found.cuda_graph, found.fused_kernels) == (cuda_graph, fused_kernels)


def test_flags_win_over_a_file_whatever_their_names(place: Path) -> None:
    flags = ["--windows", 5, "--tune", "all", "--speed", "plain", "--json"]
    old = run("cost", "trial.yaml", *flags)
    new = run("cost", "trial.yaml", "--bptt-windows", 5, "--trainable", "all", "--json")
    assert old.code == new.code == 0 and json.loads(old.out) == json.loads(new.out)
    assert {line.removeprefix("recur-tune: ") for line in sentences(old.err)} == expected(NEW_NAMES)
    assert len(sentences(old.err)) == 3
    refused = run("cost", "--speed", "fast")
    assert refused.code == 2 and "speed: 'fast' is not auto" in refused.err


def test_an_option_of_one_command(tmp_path: Path) -> None:
    said = run("eval", tmp_path, "--lanes", 4)
    assert sentences(said.err) == ["recur-tune: --lanes: it is called --batch now; the old name goes in version 0.5.0."]
    assert "holds no model" in said.err and "--lanes" not in run("eval", "--help").out


def test_the_value_of_an_old_option_is_that_of_the_new_one() -> None:
    @click.command()
    @click.option("--batch", type=int, default=16)
    @deprecated_option("lanes", "batch", "0.5.0", type=int)
    def show(batch: int) -> None:
        click.echo(batch)

    with pytest.warns(DeprecatedName):
        assert CliRunner().invoke(show, ["--lanes", "4"]).output == "4\n"
    assert CliRunner().invoke(show, []).output == "16\n"


def test_a_space_and_its_study_s_names(place: Path) -> None:
    with pytest.warns(DeprecatedName):
        spec = parse(SearchSpec, read_yaml(place / "space.yaml"))
    space = spec.parsed_space
    assert "bptt_windows" in space.names and "trainable" in space.names
    point = space.point({"recurrence": "cache", "windows": 2, "tune": "all", "speed": "recorded"})
    assert point["windows"] == 2 and point["tune"] == "all" and point["speed"] == "recorded"  # as the study has them
    fields = space.fields_of(point)
    assert fields["bptt_windows"] == 2 and fields["trainable"] == "all" and fields["fused_kernels"] is True
    today = {name: value for name, value in spec.model_dump()["space"].items() if name not in NEW_NAMES}
    renamed = parse(SearchSpec, spec.model_dump() | {
        "first": (), "space": {**today, "bptt_windows": spec.space["windows"]},
    })  # fmt: skip
    assert list(changes_between(spec.model_copy(update={"first": ()}), renamed)) == []
    assert with_overrides({"space": {}}, [("space.windows", 7)]) == {"space": {"bptt_windows": 7}}


def test_a_search_s_directory(place: Path) -> None:
    shown = json.loads((place / "search" / "front.json").read_text())
    told = run("front", "search", "--json")
    assert told.code == 0 and [_values(one) for one in json.loads(told.out)["front"]] == [_values(one) for one in shown]
    assert 1 <= len(sentences(told.err)) <= 3
    assert run("status", "search").code == 0 and run("trial", "search", "T0").code == 0
    state = SearchDirectory.open(place, "search").state()
    assert all({"windows", "tune", "speed"}.isdisjoint(trial.params) for trial in state.trials.values())
    assert {trial.params["bptt_windows"] for trial in state.trials.values()} <= {2, 4}


def _values(point: dict[str, Any]) -> dict[str, Any]:
    """Of a point on the front all but its parameters."""
    return {name: value for name, value in point.items() if name != "params"}


@pytest.mark.slow
def test_a_run_goes_on(place: Path) -> None:
    losses = json.loads((place / "run-resumed.json").read_text())
    assert run("train", "--out", "run", "--resume").code == 0
    reports = map(json.loads, (place / "run" / "reports.jsonl").read_text().splitlines())
    assert {str(one["step"]): one["loss"] for one in reports} == pytest.approx(losses, rel=1e-4)


def test_an_exported_model(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(place / "modules"))
    known = json.loads((place / "exported-loss.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(place / "exported", trust_remote_code=True).eval()
    tokens = torch.tensor([known["tokens"]])
    with torch.no_grad():
        output = model(tokens, labels=tokens)
    assert float(output.loss) == pytest.approx(known["loss"], rel=1e-5)
    last = output.logits[0, -1, :8].tolist()
    assert last == pytest.approx(known["first_logits_of_last_position"], rel=1e-4, abs=1e-5)


def python(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(place / "plugin"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], env=env, cwd=place, capture_output=True, text=True)


@pytest.mark.slow
def test_a_plugin_of_another_package(place: Path) -> None:
    words = ("train", "trial.yaml", "--recurrence", "toy", "--tune", "all", "--tokens", "600", "--out", "toy", "--json")
    done = python(place, "-m", "recur_tune.cli.main", *words)
    assert done.returncode == 0, done.stderr
    told = " ".join(sentences(done.stderr))
    assert "recur_tune.model.recurrence: it is called recur_tune.recurrences.seam now" in told
    assert "Passage: it is called WindowPass now" in told


def test_arguments_of_a_mechanism() -> None:
    with pytest.warns(DeprecatedName, match="both_ways: it is called bidirectional now"):
        found = Mechanism("toy", BaseModel, "toy:Toy", "a toy", both_ways=True, outside_state=frozenset({"rank"}))
    assert found.bidirectional and found.state_independent_fields == {"rank"}


PROGRAMS = {
    "recur_tune.slurm.job": "recur_tune.sites.slurm.job",  # in a script that waited in the queue
    "recur_tune.sites.ray.command": "recur_tune.cluster.command",  # in a job that runs since before an update
}


@pytest.mark.parametrize(("old", "new"), PROGRAMS.items())
def test_a_job_with_the_old_name_of_a_program(place: Path, old: str, new: str) -> None:
    called, meant = (python(place, "-m", name) for name in (old, new))
    last = [done.stderr.splitlines()[-1] for done in (called, meant)]
    assert called.returncode == meant.returncode and last[0] == last[1] and "No module named" not in last[0]
    assert f"{old}: it is called {new} now" in " ".join(sentences(called.stderr))
