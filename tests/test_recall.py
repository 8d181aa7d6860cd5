"""Does the recurrence do what it is for? A fact from two windows ago, asked for now."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from recur_tune.bptt.plan import fixed_plan
from recur_tune.common.windowing import NOT_SCORED, Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.data.tokens import prepare
from recur_tune.tasks.language_modelling.evaluation import evaluate
from recur_tune.tasks.language_modelling.windows import evaluation_batches
from recur_tune.training.loop import Trainer
from tests.conftest import small_model

pytestmark = pytest.mark.slow

CORPUS, VALUES = "recall:lag=2,line=10,values=8", 8


def answer_accuracy(recurrence: str, windows: int, batch: int, tokens: int) -> float:
    """The share of right answers on the test split, after training on so many tokens, or until most are known; a step
    reads as much of them whatever the windows and the batch."""
    config = TrialConfig(
        corpus=CORPUS, recurrence=recurrence, window=10, bptt_windows=windows, batch=batch, width=64, depth=2, l_ins=2,
        learning_rate=2e-3, recurrence_rate=3.0, warmup_steps=50, tokens=tokens, validate_every=20_000,
        checkpointing="none",
    )  # fmt: skip
    tokenizer = load_tokenizer("bytes")
    train, validation, test = (prepare(CORPUS, split, tokenizer) for split in ("train", "validation", "test"))
    torch.manual_seed(0)
    model = small_model(
        config.recurrence_spec, vocab_size=256, n_positions=10, n_embd=64, n_layer=2, n_head=4, initializer_range=0.3
    )
    trainer = Trainer(config, model, fixed_plan("none", config.bptt_windows), train, validation, torch.device("cpu"))
    for report in trainer.run():
        if report.validation and report.validation["answer_accuracy"] > 0.7:
            break
    return evaluate(model, test, config.windowing, batch_size=128).metrics()["answer_accuracy"]


def test_a_model_with_a_state_remembers_what_an_earlier_window_said() -> None:
    assert answer_accuracy("pooled", windows=6, batch=16, tokens=300_000) > 4 / VALUES


def test_a_model_without_a_state_is_always_asked_the_same_and_gives_the_same_answer() -> None:
    """Whatever it has learnt: so it is right where that happens to be the value, which is one time in VALUES."""
    test, asked = prepare(CORPUS, "test", load_tokenizer("bytes")), set()
    for batch, table_B5 in evaluation_batches(test, Windowing(10), batch_size=16, carry_state=False):
        for lane, place in np.argwhere(batch.targets_WBT[0].numpy() != NOT_SCORED):
            if table_B5[lane, 0] + place + 1 in test.answers:
                asked.add(tuple(batch.inputs_WBT[0, lane, : place + 1].tolist()))
    assert len(asked) == 1
    shares = [count / len(test.answers) for count in Counter(test.tokens[test.answers].tolist()).values()]
    assert len(shares) == VALUES and max(shares) < 2 / VALUES
    assert answer_accuracy("none", windows=2, batch=48, tokens=30_000) in [0, *map(pytest.approx, shares)]
