"""A recurrence, a task and a corpus from outside: what the pages show is installed, and commands use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from recur_tune.data.corpora.registry import CORPORA
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.models.pretrained import save_model
from recur_tune.recurrences.registry import MARKS, MECHANISMS
from tests.conftest import small_model
from tests.extending import commands, install, python

pytestmark = pytest.mark.slow  # they start processes, one of which trains

HIDDEN, WINDOW = 16, 16
# What no command says.
INSIDE = """
import contextlib, io
from recur_tune.config.fields import own_fields
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.descriptors import COSTS
from recur_tune.recurrences.registry import MARKS
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.space_parsing import read_space

last = TrialConfig(recurrence="last", last_rows=3, window=16)
space = read_space({"recurrence": {"none": None, "last": {"last_rows": [1, 2]}, "memory": None}})
told = said["inside"] = {
    "corners": [fields.get("last_rows") for fields in space.corners()],
    "own": [name for name in own_fields(last) if name in ("last_rows", "width", "trainable", "ending_tokens")],
    "entering": [name for name, cost in COSTS.items() if "last_rows" in cost.fields],
    "mark": MARKS["last"], "quality": OBJECTIVES["wrong_endings"].title,
}

with contextlib.redirect_stdout(io.StringIO()) as printed:
    exec(open("check_last.py").read())
told["checked"] = printed.getvalue()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three packages, and a base."""
    folder = tmp_path_factory.mktemp("packages")
    torch.manual_seed(0)
    model = small_model(vocab_size=256, n_positions=64, n_layer=2, n_embd=HIDDEN, n_head=2)
    save_model(model, load_tokenizer("bytes"), folder / "base")
    for page in ("adding-a-recurrence", "adding-a-task", "adding-a-corpus"):
        install(page, folder)
    return folder


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, Any]:
    """By name, what commands say."""
    fields = {"base": "base", "window": WINDOW, "bptt-windows": 2, "batch": 2, "tokens": 256, "validation-tokens": 200}
    flags = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    counting, sums = ([*flags, "--corpus", corpus] for corpus in ("counting:20", "sums"))
    return commands(
        folder,
        {
            "help": ["train", "--help"],
            "corpora": ["data", "list", "--json"],
            "table": ["data", "list"],
            "plain": ["cost", *counting, "--recurrence", "none", "--json"],
            "last": ["cost", *counting, "--recurrence", "last", "--last-rows", "3", "--json"],
            "train": ["train", *counting, "--recurrence", "last", "--last-rows", "3", "--out", "run"],
            "eval": ["eval", "run", "--json"],
            "untrained": ["eval", "base", "--corpus", "counting:20", "--window", "4", "--recurrence", "last", "--json"],
            "base": ["eval", "base", "--corpus", "counting:20", "--window", "4", "--recurrence", "none", "--json"],
            "train endings": [
                "train",
                *flags,
                "--corpus",
                "sums",
                "--ending-tokens",
                "2",
                "--width",
                "4",
                "--out",
                "sums",
            ],
            "eval endings": ["eval", "sums", "--json"],
            "cost endings": ["cost", *sums, "--json"],
        },
        then=INSIDE,
    )


def test_a_package_is_one_line_for_each_thing_that_it_brings(tmp_path: Path) -> None:
    lines = {
        page: {group: len(points) for group, points in install(page, tmp_path)["entry-points"].items()}
        for page in ("adding-a-recurrence", "adding-a-task", "adding-a-corpus")
    }
    assert lines == {
        "adding-a-recurrence": {"recur_tune.recurrences": 1},
        "adding-a-task": {"recur_tune.tasks": 1, "recur_tune.corpora": 1},
        "adding-a-corpus": {"recur_tune.corpora": 1},
    }


def test_fields_are_flags_before_torch_is_loaded(said: dict[str, Any]) -> None:
    shown = " ".join(said["help"].split())
    assert "--last-rows INTEGER rows of the last layer that are kept (last). [default: 2]" in shown
    assert f"--recurrence none|{'|'.join(MECHANISMS)}|last" in shown and "'last' lets the last layer look up" in shown
    assert "--ending-tokens INTEGER tokens at the end of every document that are scored" in shown
    assert not said["torch"]


def test_a_mechanism_costs_trains_and_is_evaluated(said: dict[str, Any], folder: Path) -> None:
    plain, recurrent = json.loads(said["plain"]), json.loads(said["last"])
    rows = 3
    added = rows * 2 * 2 * HIDDEN + 2 * HIDDEN * HIDDEN
    assert recurrent["flops_per_token"] - plain["flops_per_token"] == pytest.approx(added)
    assert recurrent["recurrence_parameters"] == HIDDEN * HIDDEN
    assert recurrent["inference_memory"] - plain["inference_memory"] == rows * HIDDEN * 4
    trial = yaml.safe_load((folder / "run" / "trial.yaml").read_text())
    assert (trial["last_rows"], trial["corpus"]) == (3, "counting:20") and "ending_tokens" not in trial
    assert json.loads(said["eval"])["documents"] == 8


def test_a_task_is_trained_for_and_scored_by_its_own_metric(said: dict[str, Any], folder: Path) -> None:
    scored = json.loads(said["eval endings"])
    assert scored["ending_tokens"] == 2 * 16 and 0 <= scored["wrong_endings"] <= 1 and scored["loss"] > 0
    assert "perplexity" not in scored and json.loads(said["cost endings"])["flops_per_token"] > 0
    assert yaml.safe_load((folder / "sums" / "trial.yaml").read_text())["ending_tokens"] == 2


def test_corpora_are_listed_beside_ours(said: dict[str, Any]) -> None:
    listed = json.loads(said["corpora"])
    assert [*listed] == [*CORPORA, "counting", "sums"]
    assert listed["counting"]["needs"] == "nothing" and "sums of two numbers" in said["table"]


def test_registries_know_them_and_closed_forms_are_what_torch_counts(said: dict[str, Any]) -> None:
    told = said["inside"]
    assert told["corners"] == [None, 1, None, 2] and told["own"] == ["last_rows", "trainable"]
    costs = ["flops_per_token", "training_flops_per_token", "peak_memory", "inference_memory", "parameters"]
    assert told["entering"] == costs and told["quality"] == "wrong endings"
    taken = {part for mark in MARKS.values() for part in mark}
    assert told["mark"][0] == "last" and not taken & set(told["mark"])
    assert told["checked"] == "what torch counts\n"


def test_an_untrained_state_leaves_the_base_as_it_is(said: dict[str, Any]) -> None:
    untrained, base = json.loads(said["untrained"]), json.loads(said["base"])
    assert untrained["recurrence"]["kind"] == "last" and len(untrained["loss_by_depth"]) > 1
    assert untrained["document_nll"] == base["document_nll"]


def test_one_that_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path) -> None:
    install("adding-a-recurrence", tmp_path, last_rows="batch")
    done = python(tmp_path, "-m", "recur_tune.cli.main", "data", "list")
    assert (done.returncode, done.stdout, done.stderr) == (
        2, "", "recur-tune: recurrence: 'last' has a field 'batch', which every trial has; rename it.\n"
    )  # fmt: skip
