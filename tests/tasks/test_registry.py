"""Tasks: the corpus decides, and what a task does not have is refused or left out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.common.shape import shape_of
from recur_tune.config.fields import own_fields, train_command
from recur_tune.config.trial import COMMON, TrialConfig
from recur_tune.data.corpora.registry import CORPORA
from recur_tune.models.pretrained import base_config
from recur_tune.recurrences.registry import MECHANISMS
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.tasks import registry as tasks
from recur_tune.tasks.language_modelling.spec import LANGUAGE_MODELLING
from recur_tune.tasks.question_answering.spec import QUESTION_ANSWERING
from recur_tune.tasks.registry import TASKS, Quality, task_of

GPT2, ROBERTA = (shape_of(base_config(name).to_dict()) for name in ("gpt2", "roberta-base"))


def test_every_corpus_has_a_task_and_every_task_a_corpus() -> None:
    assert {task_of(name).name for name in CORPORA} == TASKS.keys() and not [*tasks.homeless(CORPORA.values())]
    assert {name for name in CORPORA if task_of(name) is QUESTION_ANSWERING} == {"hotpotqa", "squad", "facts", "spans"}
    assert task_of("text:hotpotqa") is task_of("stdlib") is task_of("no corpus") is LANGUAGE_MODELLING
    assert task_of("hotpotqa:dev.json") is QUESTION_ANSWERING


def test_numbers_of_a_validation_have_their_titles() -> None:
    metrics = {"token_perplexity": 11.986543, "perplexity": 1.088e6, "loss": 2.5, "answer_accuracy": 0.5}
    assert LANGUAGE_MODELLING.in_words(metrics) == {
        "perplexity per token": "11.987", "perplexity per word": "1,088,000", "nats per token": "2.5",
        "answer accuracy": "0.5",
    }  # fmt: skip


def test_where_tokens_are_bytes_nobody_is_shown_perplexity_per_word() -> None:
    of_bytes = {"perplexity": 9e9, "bits_per_byte": 5.0, "loss": 5 * math.log(2)}
    assert LANGUAGE_MODELLING.in_words(of_bytes) == {"bits per byte": "5", "nats per token": "3.4657"}
    assert "perplexity per word" in LANGUAGE_MODELLING.in_words(of_bytes | {"bits_per_byte": 1.2})


def test_a_corpus_without_its_task_is_one_sentence() -> None:
    [problem] = tasks.homeless([replace(CORPORA["text"], name="songs", task="singing")])
    assert problem == (
        "corpus: 'songs' is for the task 'singing', which is not installed; these are: language modelling, question "
        "answering, forecasting."
    )


def test_a_quality_has_one_title_and_fields_are_no_other_tasks() -> None:
    other = replace(LANGUAGE_MODELLING, name="other", qualities=(Quality("f1_error", "wrong"),))
    assert tasks.REGISTRY.refusal(other, TASKS) == (
        "has a quality 'f1_error' of another title than that of 'question answering'"
    )
    assert tasks.REGISTRY.refusal(replace(QUESTION_ANSWERING, name="other"), TASKS) is None
    tasks.check(COMMON)
    with pytest.raises(UserError, match="task: 'question answering' has a field 'paragraphs', which every trial has"):
        tasks.check({"paragraphs"})


def test_every_quality_is_an_objective_of_one_task() -> None:
    qualities = [quality for task in TASKS.values() for quality in task.qualities]
    assert len({quality.name for quality in qualities}) == len(qualities)
    assert {name for name, one in OBJECTIVES.items() if one.kind == "quality"} == {one.name for one in qualities}
    assert OBJECTIVES["f1_error"].title == "1−F1"


def test_a_trial_has_the_fields_of_its_own_task_alone() -> None:
    text, asked = TrialConfig(), TrialConfig(corpus="facts", question_tokens=7)
    of_text, of_questions = (task.spec.model_fields.keys() for task in (LANGUAGE_MODELLING, QUESTION_ANSWERING))
    for config, own, others in ((text, of_text, of_questions), (asked, of_questions, of_text)):
        assert own <= own_fields(config).keys() and not others & own_fields(config).keys()
        assert own <= config.plain_values().keys() and not others & config.plain_values().keys()
    assert asked.plain_values()["question_tokens"] == 7
    assert not COMMON & tasks.FIELDS.keys()
    assert "--question-tokens 7" in train_command(asked, "out")  # type: ignore[arg-type]
    assert parse(TrialConfig, asked.plain_values()) == asked


def test_a_windows_question_is_no_text() -> None:
    config = TrialConfig(corpus="facts", window=100, overlap=10, question_tokens=17, bptt_windows=3, batch=2)
    assert (config.windowing.room, config.windowing.stride) == (80, 70)
    assert config.step_tokens == 2 * (80 + 2 * 70)
    assert TrialConfig(window=100, overlap=10, bptt_windows=3, batch=2).step_tokens == 2 * (100 + 2 * 90)


@pytest.mark.parametrize(
    ("fields", "shape", "sentence"),
    [
        ({"base": "gpt2", "corpus": "facts"}, GPT2, r"^base: gpt2 reads in one direction, and question answering, w"),
        ({"base": "roberta-base"}, ROBERTA, r"^base: roberta-base reads in both directions, and language modelling, w"),
        *(
            ({"base": "roberta-base", "corpus": "facts", "recurrence": name}, ROBERTA, f"'{name}' needs a decoder")
            for name, one in MECHANISMS.items()
            if not one.bidirectional
        ),
        (
            {"base": "roberta-base", "corpus": "facts", "pooling": "max"}, ROBERTA,
            r"^pooling: 'max' would take in the padding of windows that roberta-base reads; choose 'mean'\.$",
        ),
        ({"base": "roberta-base", "corpus": "facts", "window": 513}, ROBERTA, "more than the 512 positions"),
    ],
)  # fmt: skip
def test_what_a_body_cannot_do_is_one_sentence(fields: dict[str, Any], shape: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        TrialConfig(**fields).check_base(shape)


@pytest.mark.parametrize("recurrence", ["none", "pooled", "tokens"])
def test_an_encoder_answers_with_and_without_a_state(recurrence: str) -> None:
    TrialConfig(base="roberta-base", corpus="facts", window=512, recurrence=recurrence).check_base(ROBERTA)


def test_a_window_without_room_for_a_text_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"^window: 40 tokens, 51 of them for the question, leave 0 for the text"):
        parse(TrialConfig, {"corpus": "facts", "window": 40})
    with pytest.raises(
        UserError, match=r"^window: 60 tokens, 51 of them for the question, leave 9 for the text, and 9"
    ):
        parse(TrialConfig, {"corpus": "facts", "window": 60, "overlap": 9})
