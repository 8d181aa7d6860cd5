"""Commands on questions, in the order in which a user types them, with a tiny encoder made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForQuestionAnswering

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.models.pretrained import load_model, save_model
from recur_tune.search.record.spec import SearchSpec
from tests.cli.run import run
from tests.cli.test_bad_input import refused
from tests.tasks import FACTS_WORDS, small_encoder, word_tokenizer

pytestmark = pytest.mark.slow  # each trains

READING = ["--window", 14, "--question-tokens", 3, "--paragraphs", "whole", "--bptt-windows", 4, "--batch", 4]
SHORT = ["--tokens", "1k", "--validation-tokens", 200, "--validate-every", "1k"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("encoder") / "base", word_tokenizer([*FACTS_WORDS, "."])
    save_model(small_encoder("roberta", vocab_size=len(tokenizer)), tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An official file of ten questions; one has no answer in its paragraphs, one is answered by yes."""
    answers = ["Ada", "Ben", "yes", "Zoe", *["Ada"] * 6]
    rows = [
        {"_id": str(number), "question": "who has it", "answer": answer, "supporting_facts": [],
         "context": [["the old town", ["rain falls on the old town"]], ["two", ["Ada Ben Cleo Dora"]]]}
        for number, answer in enumerate(answers)
    ]  # fmt: skip
    file = tmp_path_factory.mktemp("questions") / "dev.json"
    file.write_text(json.dumps(rows))
    return file


@pytest.fixture(scope="module")
def runs(base: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recurrent model and a plain one, trained on the file."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "answers.yaml").write_text(
        yaml.safe_dump({"width": 16, "window": 14, "question_tokens": 3, "tokens": "1k"})
    )
    for recurrence in ("memory", "none"):
        result = run(
            "train", folder / "answers.yaml", "--base", base, "--corpus", f"hotpotqa:{questions}", *READING, *SHORT,
            "--recurrence", recurrence, "--out", folder / recurrence, "--json",
        )  # fmt: skip
        assert result.code == 0, result.err
        assert "whose answer stands in none of their paragraphs: 1." in " ".join(result.err.split())
        told = json.loads(result.out)
        assert {"f1", "exact_match", "loss"} <= told["validation"].keys()
        assert told["peak_memory"] == pytest.approx(told["measured_peak_memory"], rel=0.1)
    return folder


def test_a_run_is_a_hugging_face_folder(runs: Path) -> None:
    model, _ = load_model(runs / "memory")
    assert model.recurrence is not None and (model.config.window, model.config.overlap) == (14, 0)
    assert yaml.safe_load((runs / "memory" / "trial.yaml").read_text())["question_tokens"] == 3
    AutoModelForQuestionAnswering.from_pretrained(runs / "none")
    AutoModelForQuestionAnswering.from_pretrained(runs / "memory", trust_remote_code=True)


def test_eval_prints_the_same_numbers_as_json_and_as_a_table(runs: Path, questions: Path) -> None:
    for split, count in (("test", 1), ("train", 8)):
        result = run("eval", runs / "memory", "--split", split, "--json")
        assert result.code == 0, result.err
        told = json.loads(result.out)
        assert (told["window"], told["corpus"], told["questions"]) == (14, f"hotpotqa:{questions}", count)
        assert told["f1"] == pytest.approx(sum(one["f1"] for one in told["answers"]) / count)
    table = run("eval", runs / "memory", "--split", "train").out
    assert "exact match" in table and f"{told['f1']:.5g}" in table and "questions" in table


def test_baselines_read_windows_with_room_for_the_same_question(runs: Path) -> None:
    told = json.loads((result := run("eval", runs / "memory", "--baselines", "--json")).out)
    assert result.code == 0, result.err
    assert told["baselines"][0]["name"] == "plain windows"
    plain = json.loads(run("cost", runs / "none" / "trial.yaml", "--json").out)
    assert told["baselines"][0]["flops_per_token"] == plain["flops_per_token"] < told["flops_per_token"]


def test_a_run_may_be_asked_other_questions_in_other_windows(runs: Path) -> None:
    result = run("eval", runs / "memory", "--corpus", "facts", "--window", 20, "--state", "none", "--json")
    assert result.code == 0, result.err
    assert "was trained with window 14" in " ".join(result.err.split())
    assert json.loads(result.out)["questions"] == 256


def test_a_run_on_recurring_spans_is_a_base_for_questions(base: Path, questions: Path, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text(
            "The old town, where Ada has it, falls. Rain rings on Ada while bells ring."
        )

    def trained(out: str, start: Path, corpus: str, *flags: Any) -> str:
        fixed = ["--width", 16, "--learning-rate", 1e-12, "--tokens", 50]
        words = ["--base", start, "--corpus", corpus, *READING, *SHORT, *fixed, *flags, "--out", tmp_path / out]
        result = run("train", *words)
        assert result.code == 0, result.err
        return " ".join(result.err.split())

    trained("first", base, f"spans:{tmp_path}", "--question-tokens", 8, "--learning-rate", 1e-3)
    before = dict(load_model(tmp_path / "first")[0].named_parameters())
    assert "left behind" not in trained("same", tmp_path / "first", f"hotpotqa:{questions}")
    assert "left behind, since the trial has none" in trained(
        "none", tmp_path / "first", f"hotpotqa:{questions}", "--recurrence", "none"
    )
    for name in ("same", "none"):
        after = dict(load_model(tmp_path / name)[0].named_parameters())
        assert {one for one in before if name == "same" or not one.startswith("recurrence.")} == after.keys()
        for one, parameter in after.items():
            torch.testing.assert_close(parameter, before[one], rtol=0, atol=1e-6)


def test_what_an_encoder_cannot_do_is_one_sentence(runs: Path) -> None:
    refused(run("generate", runs / "memory"), "is an encoder, which predicts no next tokens")
    refused(run("eval", runs / "none", "--corpus", "recall"), "reads in both directions", "needs a decoder")
    refused(run("eval", runs / "memory", "--window", 6), "no room beside the 6 tokens for a question")
    refused(run("eval", runs / "memory", "--overlap", 8), "overlap: 8", "0 to 7")
    refused(run("budget", runs / "memory", "--against", runs / "none"), "is an encoder")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--recurrence", "cache"], ["recurrence: 'cache' needs a decoder", "choose pooled, tokens or none"]),
        (["--pooling", "max"], ["pooling: 'max'", "choose 'mean'"]),
        (["--corpus", "stdlib"], ["base: ", "reads in both directions", "needs a decoder"]),
        (["--base", "tiny"], ["base: tiny reads in one direction", "needs an encoder"]),
        (["--question-tokens", 30], ["window: 14 tokens, 33 of them for the question", "leave 0 for the text"]),
        (["--bptt-windows", 2, "--corpus", "facts:lag=5"], ["none of its 4096 training", "more than the 2 windows"]),
        (["--tokenizer", "bytes"], ["tokenizer: "]),
        (["--corpus", "squad:nowhere.json"], ["squad:nowhere.json names no file"]),
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_is_one_sentence(base: Path, flags: list[Any], words: list[str], tmp_path: Path) -> None:
    usual = ["--base", base, "--corpus", "facts", *READING, *SHORT, "--out", tmp_path / "run"]
    refused(run("train", *usual, *flags), *words)
    assert not (tmp_path / "run").exists()


def test_a_file_of_another_format_is_one_sentence(base: Path, questions: Path, tmp_path: Path) -> None:
    corpus = ["--corpus", f"squad:{questions}", "--out", tmp_path / "run"]
    refused(run("train", "--base", base, *READING, *SHORT, *corpus), "is not in the format of squad")


def test_costs_and_data_know_questions(base: Path, questions: Path) -> None:
    told = json.loads(run("cost", "--base", base, "--corpus", "facts", *READING, "--json").out)
    assert told["flops_per_token"] > 0 and told["inference_memory"] == 24 * 4  # a state of one embedding
    summaries = json.loads(run("data", "prepare", f"hotpotqa:{questions}", "--tokenizer", base, "--json").out)["splits"]
    assert [summaries[split]["documents"] for split in ("train", "validation", "test")] == [8, 1, 1]
    assert "hotpotqa" in run("data", "list").out


def test_a_search_minimises_a_quality_of_its_own_task() -> None:
    space = {"base": "roberta-base", "corpus": "facts", "window": [128, 256]}
    fields = {"space": space, "budget": {"trials": 3}, "objectives": ["f1_error", "flops_per_token"]}
    assert parse(SearchSpec, fields).objectives == ("f1_error", "flops_per_token")
    with pytest.raises(
        UserError, match=r"^objectives: perplexity is no quality of question answering, which facts is for; these are"
    ):
        parse(SearchSpec, fields | {"objectives": ["perplexity", "flops_per_token"]})
    with pytest.raises(
        UserError, match="objectives: f1_error is no quality of language modelling, which stdlib is for"
    ):
        parse(SearchSpec, fields | {"space": {"window": [128, 256]}})
