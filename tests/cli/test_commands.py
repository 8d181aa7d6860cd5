"""Whole commands on a tiny model, in the order in which a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GPT2LMHeadModel

from tests.cli.run import run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, a recurrent model and a plain one trained from it."""
    folder = tmp_path_factory.mktemp("tour")
    short = ["--tokens", "4k", "--validate-every", "4k", "--validation-tokens", "2k"]
    assert run("pretrain", "--corpus", "recall", "--window", 64, *short, "--out", folder / "base").code == 0
    for recurrence in ("pooled", "none"):
        arguments = ["--base", folder / "base", "--corpus", "recall", "--recurrence", recurrence, "--width", 16]
        reading = ["--window", 16, "--overlap", 4, "--bptt-windows", 4]
        result = run("train", *arguments, *reading, *short, "--out", folder / recurrence, "--json")
        assert result.code == 0, result.err
        told = json.loads(result.out)  # and nothing but JSON on stdout
        assert told["tokens"] >= 4000
        assert told["peak_memory"] == pytest.approx(told["measured_peak_memory"], rel=0.05)
    return folder


def test_a_run_leaves_a_hugging_face_folder_and_its_own_records(tour: Path) -> None:
    names = {path.name for path in (tour / "pooled").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "trial.yaml", "reports.jsonl", "result.json"} <= names
    assert not any(name.startswith(".partial") for name in names)
    reports = [json.loads(line) for line in (tour / "pooled" / "reports.jsonl").read_text().splitlines()]
    assert [report["step"] for report in reports] == list(range(1, len(reports) + 1))
    assert AutoTokenizer.from_pretrained(tour / "base").encode("Aé") == list("Aé".encode())
    GPT2LMHeadModel.from_pretrained(tour / "none")


def test_eval_prints_the_same_numbers_as_json_and_as_a_table(tour: Path) -> None:
    told = json.loads(run("eval", tour / "pooled", "--split", "test", "--json").out)
    assert (told["window"], told["overlap"], told["corpus"]) == (16, 4, "recall")
    assert {"perplexity", "token_perplexity", "bits_per_byte", "accuracy", "tokens_per_second"} <= told.keys()
    assert len(told["loss_by_position"]) == 16
    table = run("eval", tour / "pooled", "--split", "test").out
    assert f"{told['token_perplexity']:.5g}" in table and f"{told['bits_per_byte']:.5g}" in table
    assert "perplexity per word" not in table, "tokens are bytes"


def test_long_documents_that_leave_the_batch_empty_are_told_with_the_remedy(tour: Path) -> None:
    slow = run("eval", tour / "pooled", "--batch", 1000, "--json")
    assert "of 1000 rows busy" in slow.err and "`--sample 100k`" in slow.err
    quick = run("eval", tour / "pooled", "--sample", 300, "--json")
    assert "rows busy" not in quick.err
    assert json.loads(quick.out)["tokens"] <= 300 < json.loads(slow.out)["tokens"]
    assert "rows busy" not in run("eval", tour / "none", "--batch", 1000, "--json").err


def test_a_base_is_read_with_a_state_that_nothing_was_trained_for(tour: Path) -> None:
    reading = ["--corpus", "recall", "--window", 16, "--overlap", 4, "--json"]
    cache = ["--recurrence", "cache", "--cache-rows", 8, "--cache-keep", "keydiff"]
    said = {
        "plain": run("eval", tour / "base", *reading),
        "as a base": run("eval", tour / "base", *reading, "--recurrence", "none"),
        "cache": run("eval", tour / "base", *reading, *cache),
        "no state": run("eval", tour / "base", *reading, *cache, "--state", "none"),
        "left behind": run("eval", tour / "pooled", *reading, "--recurrence", "none"),
    }
    told = {name: json.loads(outcome.out) for name, outcome in said.items()}
    losses = {name: one["loss"] for name, one in told.items()}
    assert losses["as a base"] == losses["plain"]
    assert losses["no state"] == pytest.approx(losses["plain"], rel=1e-6)
    assert abs(losses["cache"] / losses["plain"] - 1) > 1e-4
    assert told["plain"]["recurrence"] is None and told["cache"]["recurrence"]["cache_keep"] == "keydiff"
    assert "is left behind" in " ".join(said["left behind"].err.split())


def test_only_a_recurrent_model_warns_about_another_overlap(tour: Path) -> None:
    assert "was trained with window 16 and overlap 4" in " ".join(
        run("eval", tour / "pooled", "--overlap", 0).err.split()
    )
    plain = run("eval", tour / "none", "--overlap", 8, "--json")
    assert "was trained" not in plain.err
    assert json.loads(plain.out)["overlap"] == 8


def test_generate_streams_past_the_context_and_repeats_with_a_seed(tour: Path) -> None:
    once, again = (
        run("generate", tour / "pooled", "--prompt", "it is ", "--tokens", 150, "--seed", 7) for _ in range(2)
    )
    assert once.out == again.out and once.out.startswith("it is ") and len(once.out.encode()) >= 150
    told = json.loads(
        run("generate", tour / "pooled", "--prompt", "it is ", "--tokens", 150, "--seed", 7, "--json").out
    )
    assert f"{told['prompt']}{told['text']}\n" == once.out and told["tokens"] == 150


def test_a_yaml_file_holds_the_same_fields_and_flags_win_over_it(tour: Path, tmp_path: Path) -> None:
    trial = tmp_path / "trial.yaml"
    trial.write_text(
        f"base: {tour / 'base'}\ncorpus: recall\nwindow: 16\nwindows: 3\ntokens: 2k\nwidth: 8\nvalidate_every: 2k\n"
    )
    assert run("train", trial, "--width", 9, "--validate-every", "2k", "--out", tmp_path / "run").code == 0
    stored = (tmp_path / "run" / "trial.yaml").read_text()
    assert "width: 9" in stored and "windows: 3" in stored and "tokens: 2000" in stored


@pytest.mark.parametrize(
    ("rate", "told", "untold"), [("1e-3", "best so far", "no better"), ("9", "no better", "best so far")]
)
def test_a_run_that_is_worse_than_before_training_says_so(
    rate: str, told: str, untold: str, tour: Path, tmp_path: Path
) -> None:
    words = ("--base", tour / "base", "--corpus", "recall", "--recurrence", "none", "--window", 16, "--tokens", 500)
    said = run("train", *words, "--validation-tokens", 300, "--learning-rate", rate, "--out", tmp_path / "run")
    assert said.code == 0 and f"({told}" in said.err and untold not in said.err
    assert ("a lower --learning-rate or more --tokens may help." in said.err) == (told == "no better")


def test_cost_answers_offline_for_a_published_shape() -> None:
    told = json.loads(
        run("cost", "--base", "distilgpt2", "--window", 64, "--bptt-windows", 2, "--batch", 1, "--json").out
    )
    assert {"flops_per_token", "training_flops_per_token", "peak_memory", "parameters"} <= told.keys()
    assert told["parameters"] - told["recurrence_parameters"] == 81_912_576
    assert told["peak_memory"] > 16 * told["parameters"]  # weights, gradients, two moments


def test_cost_tells_the_memory_of_each_worker_and_what_they_exchange() -> None:
    shape = ("cost", "--base", "distilgpt2", "--window", 64, "--bptt-windows", 2, "--batch", 2, "--json")
    one, alone, replicated, sharded = (
        json.loads(run(*shape, *more).out)
        for more in (("--batch", 1), (), ("--workers", 2), ("--workers", 2, "--shard"))
    )
    assert replicated["peak_memory"] == one["peak_memory"] < alone["peak_memory"], "its share of the batch decides"
    weights = alone["parameters"]
    assert replicated["peak_memory"] - sharded["peak_memory"] == 8 * weights // 2, "half of two moments"
    # A ring of n sends 2 (n - 1) / n times its numbers, of four bytes.
    assert replicated["exchanged_bytes"] == sharded["exchanged_bytes"] == 4 * weights
    assert (alone["exchanged_bytes"], replicated["flops_per_token"]) == (0, alone["flops_per_token"])


def test_data_list_and_prepare(tmp_path: Path) -> None:
    assert {"stdlib", "recall", "wikitext-103", "pg19", "enwik8", "text8", "text"} <= json.loads(
        run("data", "list", "--json").out
    ).keys()
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.txt").write_text(f"some {split} text")
    told = json.loads(run("data", "prepare", f"text:{tmp_path}", "--json").out)
    assert told["splits"]["train"] == {"documents": 1, "tokens": 15, "words": 3, "bytes": 15}


def test_data_split_makes_a_corpus_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for number in range(10):
        (tmp_path / "books" / f"{number}.txt").write_text(f"book {number}")
    words = ("data", "split", tmp_path / "books", "--to", tmp_path / "texts")
    told = json.loads(run(*words, "--json").out)
    assert {name: part["documents"] for name, part in told["splits"].items()} == {
        "train": 8,
        "validation": 1,
        "test": 1,
    }
    assert run("data", "prepare", told["corpus"]).code == 0
    again = run(*words)
    assert again.code == 2 and "texts is there already" in again.err
    missing = run("data", "split", tmp_path / "novels", "--to", tmp_path / "other")
    assert missing.code == 2 and "source: there is no file or folder" in missing.err


def test_every_command_explains_itself() -> None:
    for command in ("pretrain", "train", "eval", "generate", "cost", "data", "data list", "data split", "data prepare"):
        result = run(*command.split(), "--help")
        assert result.code == 0 and "Usage:" in result.out
    assert "--l-ins" in run("train", "--help").out


def test_an_interrupted_run_is_saved_and_goes_on_to_the_same_end(tour: Path, tmp_path: Path) -> None:
    arguments = [
        "train",
        "--base",
        tour / "base",
        "--corpus",
        "recall",
        "--window",
        16,
        "--bptt-windows",
        4,
        "--width",
        8,
    ]
    arguments += ["--tokens", "6k", "--validate-every", "2k", "--validation-tokens", "500"]
    # After a validation, so that there is something to lose.
    training = run(*arguments, "--out", tmp_path / "cut", ctrl_c=lambda out, err: "validation" in err)
    assert training.code == 130
    assert "--resume" in training.err and "Traceback" not in training.err

    assert run("train", "--out", tmp_path / "cut", "--resume").code == 0
    assert run(*arguments, "--out", tmp_path / "whole").code == 0
    cut, whole = (
        [
            json.loads(line) | {"tokens_per_second": 0}
            for line in (tmp_path / name / "reports.jsonl").read_text().splitlines()
        ]
        for name in ("cut", "whole")
    )
    assert cut == whole
