"""Export of a trial's model from a search, or of a single run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from recur_tune.cli.export import LORA_FILE
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import MODEL, SearchDirectory
from recur_tune.training import RESULT, RESUME, TRIAL
from tests.cli.books import refused
from tests.cli.run import run


@pytest.mark.parametrize("trial", ["T1", "1", "t1"])
def test_export_copies_the_model_and_says_what_it_is(results: Path, tmp_path: Path, trial: str) -> None:
    target = tmp_path / "models" / "one"
    outcome = run("export", "books", "--trial", trial, "--to", target)
    assert outcome.code == 0 and outcome.out == "T1\n"
    assert f"written:  {target}" in outcome.err and f"recur-tune eval {target}" in outcome.err
    assert sorted(file.name for file in target.iterdir()) == ["config.json", "model.safetensors", "trial.yaml"]
    config = parse(TrialConfig, yaml.safe_load((target / "trial.yaml").read_text()))
    assert (config.window, config.overlap, config.tokens) == (32, 8, 80_000)
    refused(run("export", "books", "--trial", trial, "--to", target), "to:", str(target))


def test_a_model_saved_without_its_code_is_exported_with_it(results: Path, tmp_path: Path) -> None:
    settings = {"model_type": "recurrent_gpt2", "recurrence": {"l_ins": 2}}
    (SearchDirectory.open(results, "books").trial(1) / MODEL / "config.json").write_text(json.dumps(settings))
    assert run("export", "books", "--trial", "T1", "--to", tmp_path / "one").code == 0
    written = json.loads((tmp_path / "one" / "config.json").read_text())
    assert written == settings | {"auto_map": written["auto_map"]}
    places = written["auto_map"].values()
    assert all((tmp_path / "one" / f"{place.partition('.')[0]}.py").is_file() for place in places)


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        ("T2", ["T2 is not on the front", "keep: all"]),
        ("T3", ["T3 is pruned"]),
        ("T4", ["T4 is running"]),
        ("T5", ["T5 is infeasible"]),
        ("T99", ["'T99'", "recur-tune front books"]),
        ("best", ["'best'"]),
        ("-1", ["'-1'"]),
    ],
)
def test_export_refuses_what_has_no_model(results: Path, tmp_path: Path, trial: str, words: list[str]) -> None:
    refused(run("export", "books", f"--trial={trial}", "--to", tmp_path / "model"), "trial: ", *words)
    assert not (tmp_path / "model").exists()


def test_export_says_what_a_folder_lacks(results: Path, tmp_path: Path) -> None:
    run_folder, other = tmp_path / "runs" / "a", tmp_path / "runs" / "other"
    refused(run("export", run_folder, "--to", tmp_path / "model"), f"name: there is no folder {run_folder}")
    for folder in (run_folder, other):
        folder.mkdir(parents=True)
    refused(run("export", other, "--to", tmp_path / "model"), "no trial.yaml")
    (run_folder / TRIAL).write_text("window: 32\n")
    no_model = "has no model before a first validation; go on: recur-tune train"
    refused(run("export", run_folder, "--to", tmp_path / "model"), no_model)


def test_export_of_an_interrupted_run_says_that_it_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / RESUME).mkdir(parents=True)
    (folder / TRIAL).write_text("window: 32\n")
    (folder / "config.json").write_text("{}")
    outcome = run("export", folder, "--to", tmp_path / "early")
    assert outcome.code == 0 and f"{folder} is unfinished" in outcome.err
    (folder / RESULT).write_text("{}")
    assert "unfinished" not in run("export", folder, "--to", tmp_path / "late").err


def test_a_plain_adapters_next_command_has_its_windows(tmp_path: Path) -> None:
    run_folder, target = tmp_path / "a", tmp_path / "lora"
    run_folder.mkdir()
    fields = {"base": "my base", "corpus": "tales", "trainable": "lora", "window": 24, "overlap": 8}
    for kind, windows in (("none", " --window 24 --overlap 8"), ("cache", "")):
        (run_folder / TRIAL).write_text(yaml.safe_dump({**fields, "recurrence": kind}))
        (run_folder / "config.json").write_text("{}")
        matrices = {f"base_model.model.q_proj.lora_{part}.weight": torch.zeros(1, 1) for part in "AB"}
        save_file(matrices, run_folder / LORA_FILE, metadata={"lora": '{"r": 1}'})
        told = run("export", run_folder, "--adapter", "--to", target / kind).err
        command = f"recur-tune train --base 'my base' --adapter {target / kind} --corpus tales{windows} --out RUN"
        assert f"next:  {command}\n" in told


def test_export_from_a_search_that_keeps_nothing_says_so(results: Path, tmp_path: Path) -> None:
    directory = SearchDirectory.open(results, "books")
    directory.change_spec(directory.spec.model_copy(update={"keep": "none"}))
    refused(run("export", "books", "--trial", "T2", "--to", tmp_path / "model"), "keep: none")


def test_exporting_into_an_empty_folder_is_fine(results: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("export", "books", "--trial", "T0", "--to", tmp_path / "empty").code == 0
    assert (tmp_path / "empty" / "trial.yaml").is_file()
