"""Training on questions: a step's mean is over questions, and a run that was cut goes on to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from recur_tune.bptt.plan import fixed_plan
from recur_tune.common.errors import UserError
from recur_tune.config.trial import TrialConfig
from recur_tune.training.checkpoint import load_checkpoint, save_checkpoint
from recur_tune.training.loop import Trainer
from tests.tasks import FACTS_WORDS, small_encoder, word_tokenizer

pytestmark = pytest.mark.slow  # each trains

TOKENIZER = word_tokenizer(FACTS_WORDS)


def trainer_of(recurrence: str = "pooled", **changes: Any) -> Trainer:
    config = TrialConfig(
        corpus="facts:lag=2", recurrence=recurrence, window=14, question_tokens=3, paragraphs="whole", bptt_windows=4,
        batch=3, width=8, depth=1, tokens=350, validate_every=150, dropout=0.1,
    )  # fmt: skip
    task = config.task.build(config.task_spec)
    # Of the training questions so few that there is more than an epoch.
    train, validation = (task.sample(task.prepare(config.corpus, split, TOKENIZER), 120) for split in ("train", "test"))
    torch.manual_seed(0)
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.1)
    model = small_encoder("roberta", config.recurrence_spec, vocab_size=len(TOKENIZER), **rates | changes)
    task.check(model, train)
    plan = fixed_plan("all", config.bptt_windows)
    return Trainer(config, model, plan, train, validation, torch.device("cpu"))


def told(trainer: Trainer, steps: int | None = None) -> list[dict[str, Any]]:
    reports = trainer.run()
    found = list(reports) if steps is None else [next(reports) for _ in range(steps)]
    return [{k: v for k, v in one.to_dict().items() if k != "tokens_per_second"} for one in found]


@pytest.mark.parametrize("recurrence", ["pooled", "none"])
def test_a_resumed_run_goes_on_bit_for_bit(recurrence: str, tmp_path: Path) -> None:
    whole = told(trainer_of(recurrence))
    assert whole[-1]["validation"]["f1"] >= 0 and whole[-1]["last"]
    first = trainer_of(recurrence)
    beginning = told(first, steps=2)
    save_checkpoint(first, tmp_path)
    second = trainer_of(recurrence)
    torch.manual_seed(999)
    load_checkpoint(second, tmp_path)
    assert beginning + told(second) == whole


def test_a_step_is_a_mean_over_questions() -> None:
    trainer = trainer_of()
    batch = next(trainer.stream)
    assert batch.mean_over == int(batch.fresh_WB.logical_and(batch.targets_WBT[..., 0] >= 0).sum()) == 3
    assert batch.step_scored == 3 * 3 * 8  # questions, paragraphs, words: what the budget counts


def test_another_padding_than_the_bases_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^tokenizer: it fills up with token 1, and the base with 0; use the base's own"
    ):
        trainer_of(pad_token_id=0)
