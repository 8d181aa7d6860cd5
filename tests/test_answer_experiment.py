"""The cross-validation behind results on questions: folds, choices and differences, and the whole of it once."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.models.pretrained import save_model
from tests.cli.run import run as command
from tests.tasks import FACTS_WORDS, small_encoder, word_tokenizer

TEXT = [["the old town", ["rain falls on the old town"]], ["two", ["Ada Ben Cleo Dora"]]]


def question(number: int, answer: str = "Ada", context: Any = TEXT) -> dict[str, Any]:
    return {"_id": str(number), "question": "who has it", "answer": answer, "supporting_facts": [], "context": context}


@pytest.mark.usefixtures("experiment")
def test_every_question_is_tested_once_by_a_model_that_has_not_seen_it() -> None:
    from question_folds import folds_of

    @given(st.integers(4, 60), st.integers(2, 4))
    def check(count: int, folds: int) -> None:
        found = folds_of(range(count), folds)
        assert sorted(one for parts in found for one in parts["test"]) == list(range(count))
        assert max(len(parts["test"]) for parts in found) - min(len(parts["test"]) for parts in found) <= 1
        for parts in found:
            together = parts["train"] + parts["validation"] + parts["test"]
            assert sorted(together) == list(range(count)) and parts["validation"]

    check()


@pytest.mark.usefixtures("experiment")
def test_a_question_is_answerable_if_its_text_has_the_answer_or_it_is_yes_or_no() -> None:
    from question_folds import answerable_of

    rows = [question(0), question(1, "Zoe"), question(2, "no"), question(3, "no", []), question(4, "Ada", [])]
    assert answerable_of(rows) == {"0", "2"}


def result(form: str, rate: float, fold: int, validation: float, scores: dict[str, float]) -> dict[str, Any]:
    answers = [{"id": name, "answer": f"of {form}", "f1": one, "exact_match": one} for name, one in scores.items()]
    test = {state: {"answers": answers} for state in ("own", "none", "other")}
    asked = {"f1": validation, "answers": [{"f1": validation}]}
    return {
        "form": form, "reading": "300/0", "rate": rate, "folds": 2, "fold": fold, "recurrence": form,
        "scores": {"validation": {"own": asked}, "test": test}, "flops_per_token": 1.0, "tokens_per_second": 1.0,
    }  # fmt: skip


@pytest.fixture
def rows() -> list[Any]:
    return [question(number) for number in range(4)]


@pytest.fixture
def results(experiment: Callable[..., None], rows: list[Any]) -> list[dict[str, Any]]:
    """Two folds of two questions; in the second fold the other rate is the better one, and one question has no text."""
    from question_folds import folds_of

    (one, other), (third, _) = [[row["_id"] for row in parts["test"]] for parts in folds_of(rows, 2)]
    return [
        result("none", 1e-4, 0, 0.5, {one: 1.0, other: 0.0}),
        result("none", 1e-4, 1, 0.5, {third: 0.5}),
        result("pooled", 1e-4, 0, 0.9, {one: 1.0, other: 0.5}),
        result("pooled", 1e-4, 1, 0.1, {third: 0.0}),
        result("pooled", 1e-3, 0, 0.2, {one: 0.0, other: 0.0}),
        result("pooled", 1e-3, 1, 0.3, {third: 1.0}),
        result("none", 1e-3, 0, 0.4, {one: 0.0, other: 0.0}),
        result("none", 1e-3, 1, 0.4, {third: 0.0}),
    ]


def test_a_fold_takes_the_rate_that_its_own_validation_likes_best(results: list[Any], rows: list[Any]) -> None:
    from answer_tables import differences_of, groups, scores_of, told

    [group] = groups(results, rows)
    assert [(one["fold"], one["rate"]) for one in group.best("pooled")] == [(0, 1e-4), (1, 1e-3)]
    assert scores_of(group.best("pooled"), group.questions, "f1") == [100, 50, 100, 0], "not asked is wrong"
    differences = differences_of(group.best("none"), group.best("pooled"), group.questions, "f1")
    assert differences == [0, 50, 50, 0]
    assert told(differences, "+") == f"+25.00 ± {statistics.stdev(differences) / 2:.2f}"


def test_a_fold_that_is_not_complete_is_left_out_with_its_questions(
    results: list[Any], rows: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from answer_tables import groups, print_tables
    from question_folds import folds_of

    [group] = groups(results[:-1], rows)
    assert group.questions == [row["_id"] for row in folds_of(rows, 2)[0]["test"]]
    assert {one["fold"] for one in group.best("pooled")} == {0} and group.missing == 1
    print_tables(results[:-1], rows)
    assert "1 of them not complete" in capsys.readouterr().out
    [group] = groups(results[1:-1], rows)  # as many runs in both folds, and not the same
    assert (group.missing, group.questions, group.forms) == (2, [], [])
    print_tables(results[1:-1], rows)
    assert "2 of them not complete" in capsys.readouterr().out


@pytest.mark.slow
def test_the_experiment_answers_as_eval_does_and_goes_on_where_it_was(
    experiment: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = word_tokenizer([*FACTS_WORDS, "."])
    save_model(small_encoder("roberta", vocab_size=len(tokenizer)), tokenizer, tmp_path / "base")
    rows = [question(number, answer) for number, answer in enumerate(["Ada", "Ben", "yes", "Zoe", *["Dora"] * 6])]
    file, out, runs = tmp_path / "dev.json", tmp_path / "a.jsonl", tmp_path / "runs"
    file.write_text(json.dumps([*rows, question(10, "Ada", [])]))
    words = (
        "--base", tmp_path / "base", "--questions", file, "--out", out, "--runs", runs, "--folds", 2, "--readings",
        "14/0", "--rates", 1e-3, "--set", "question_tokens=3", "paragraphs=whole", "bptt_windows=4", "batch=2",
        "tokens=100",
    )  # fmt: skip
    experiment("answers", *words, "--forms", "none")
    experiment("answers", *words, "--forms", "none", "pooled")
    printed = capsys.readouterr().out
    assert printed.count("none 14/0 0.001 2 0:") == 1, "what is known is not trained again"
    assert "11 questions, of which 9 can be answered" in printed
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["form"], one["fold"]) for one in results] == [("none", 0), ("none", 1), ("pooled", 0), ("pooled", 1)]
    assert list(results[0]["scores"]["test"]) == ["own"]
    for state in ("own", "none", "other"):
        said = command("eval", runs / "pooled-14-0-0.001-2-1", "--state", state, "--batch", 64, "--json")
        assert json.loads(said.out)["answers"] == results[3]["scores"]["test"][state]["answers"]
    experiment("answer_tables", out, "--questions", file, "--predictions", tmp_path / "given")
    given_answers = json.loads((tmp_path / "given" / "14-0-2-folds-pooled.json").read_text())["answer"]
    assert given_answers["10"] == "" and len(given_answers) == 11
    asked = [one for run in results[2:] for one in run["scores"]["test"]["own"]["answers"]]
    assert {one["id"]: one["answer"] for one in asked}.items() <= given_answers.items()
