"""Does a state answer a question? A fact from the window before, without which the answer cannot be known."""

from __future__ import annotations

import pytest
import torch

from recur_tune.bptt.plan import fixed_plan
from recur_tune.config.trial import TrialConfig
from recur_tune.training.loop import Trainer
from tests.tasks import FACTS_WORDS, small_encoder, word_tokenizer

pytestmark = pytest.mark.slow

VALUES = 4


def exact_match(recurrence: str, tokens: int) -> float:
    """The share of right answers on the test split, after training on so many tokens, or until there is little left
    to learn."""
    config = TrialConfig(
        corpus=f"facts:values={VALUES}", recurrence=recurrence, window=14, question_tokens=3, paragraphs="whole",
        bptt_windows=4, batch=32, depth=0, l_ins="all", learning_rate=2e-3, warmup_steps=20, tokens=tokens,
        validate_every=16_000, checkpointing="none",
    )  # fmt: skip
    tokenizer, task = word_tokenizer(FACTS_WORDS), config.task.build(config.task_spec)
    train, validation, test = (
        task.prepare(config.corpus, split, tokenizer) for split in ("train", "validation", "test")
    )
    torch.manual_seed(0)
    model = small_encoder(
        "roberta", config.recurrence_spec, vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=96, initializer_range=0.1,
    )  # fmt: skip
    trainer = Trainer(config, model, fixed_plan("none", config.bptt_windows), train, validation, torch.device("cpu"))
    for report in trainer.run():
        if report.validation and report.validation["exact_match"] > 0.95:
            break
    return task.evaluate(model, test, config.windowing, batch_size=64).metrics()["exact_match"]


def test_a_model_with_a_state_answers_from_the_window_before() -> None:
    assert exact_match("pooled", tokens=160_000) > 0.9


def test_a_model_without_a_state_stays_at_chance() -> None:
    # The other knows nearly all answers after as many tokens. Chance is one in VALUES.
    assert exact_match("none", tokens=80_000) < 1.6 / VALUES
