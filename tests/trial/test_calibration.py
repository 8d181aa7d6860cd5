"""A trial whose recurrence has to know its base measures it before training begins."""

from __future__ import annotations

import numpy as np
import torch

from recur_tune.corpus.tokens import TokenisedSplit, prepare
from recur_tune.trial.setup import calibration_texts, set_up
from tests.training.runs import trial


def split_of(count: int) -> TokenisedSplit:
    nothing = np.zeros(0, dtype=np.int64)
    return TokenisedSplit(np.arange(count, dtype=np.uint16), nothing, nothing, np.array([0, count]), nothing)


def test_texts_come_from_all_over_the_split() -> None:
    texts = calibration_texts(split_of(60_000), 32)
    assert texts.shape == (512, 32) and texts.dtype == torch.int64
    assert (texts.diff(dim=1) == 1).all(), "each is a stretch"
    assert texts[0, 0] == 0 and texts[-1, -1] == 59_999


def test_a_short_split_gives_fewer_and_a_tiny_one_shorter() -> None:
    assert calibration_texts(split_of(100), 32).shape == (3, 32)
    assert calibration_texts(split_of(20), 32).tolist() == [list(range(20))]


def test_a_trial_begins_with_the_places_of_its_base() -> None:
    trainer, tokenizer = set_up(trial(base="tiny", corpus="stdlib", recurrence="cache", cache_rows=4))
    model, texts = trainer.model, calibration_texts(prepare("stdlib", "train", tokenizer), 128)
    # A first layer's keys and values are those of embedded tokens, each alone.
    block, embedded = model.transformer.h[0], model.transformer.wte(texts) + model.transformer.wpe.weight
    _, keys, values = block.attn.c_attn(block.ln_1(embedded)).chunk(3, dim=-1)
    torch.testing.assert_close(model.recurrence.places[0], torch.cat([keys, values], -1).mean(0), rtol=1e-4, atol=1e-5)
