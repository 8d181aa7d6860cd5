"""A recurrence that has to know its body measures it, before training begins and while the body learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recur_tune.data.tokens import TokenisedSplit
from recur_tune.training.calibration import stretches
from recur_tune.training.checkpoint import load_checkpoint, save_checkpoint
from recur_tune.training.loop import Trainer
from tests.training.runs import split_of, trainer_of, trial

CACHED = {"recurrence": "cache", "cache_rows": 6, "batch": 2, "validate_every": 10_000}


def counted(count: int) -> TokenisedSplit:
    nothing = np.zeros(0, dtype=np.int64)
    return TokenisedSplit(np.arange(count, dtype=np.uint16), nothing, nothing, np.array([0, count]), nothing)


def trained(steps: int, **fields: object) -> Trainer:
    trainer = trainer_of(trial(**CACHED | fields))
    for _, _ in zip(range(steps), trainer.run(), strict=False):
        pass
    return trainer


def first_layers_places(trainer: Trainer, texts: torch.Tensor) -> torch.Tensor:
    """A first layer's keys and values are those of embedded tokens, each alone."""
    own = trainer.model.transformer
    embedded = own.wte(texts) + own.wpe.weight[: texts.shape[1]]
    return torch.cat(own.h[0].attn.c_attn(own.h[0].ln_1(embedded)).chunk(3, dim=-1)[1:], dim=-1).mean(0)


def test_stretches_come_from_all_over_the_split() -> None:
    texts = stretches(counted(60_000), 32, 512)
    assert texts.shape == (512, 32) and texts.dtype == torch.int64
    assert (texts.diff(dim=1) == 1).all(), "each is a stretch"
    assert texts[0, 0] == 0 and texts[-1, -1] == 59_999
    drawn = stretches(counted(60_000), 32, 512, np.random.default_rng(0))
    assert (drawn.diff(dim=1) == 1).all() and 27_000 < drawn.double().mean() < 33_000


def test_a_short_split_gives_fewer_and_a_tiny_one_shorter() -> None:
    assert stretches(counted(100), 32, 512).shape == (3, 32)
    assert stretches(counted(20), 32, 512, np.random.default_rng(0)).tolist() == [list(range(20))]


def test_a_run_begins_with_the_places_of_its_base() -> None:
    trainer = trained(0)
    trainer.calibration.before(0)
    texts = stretches(split_of([150, 7, 90, 33, 200]), trainer.model.config.shape.context, 512)
    expected = first_layers_places(trainer, texts)
    torch.testing.assert_close(trainer.model.recurrence.places[0, : len(expected)], expected)


@pytest.mark.parametrize(("trainable", "moves"), [("all", True), ("recurrence", False)])
def test_places_follow_a_body_that_learns(trainable: str, moves: bool) -> None:
    trainer = trained(10, trainable=trainable, learning_rate=3e-2)
    before = trainer.model.recurrence.places.clone()
    trainer.calibration.before(9)
    assert torch.equal(before, trainer.model.recurrence.places), "not at every step"
    trainer.calibration.before(10)
    after = trainer.model.recurrence.places
    assert moves == (not torch.equal(before, after))
    if moves:  # a fifth of the way to what they are now, up to which of the few texts were drawn
        now = first_layers_places(trainer, stretches(split_of([150, 7, 90, 33, 200]), 14, 512))
        gone = (after[0] - before[0])[:14] / (now - before[0, :14])
        assert 0.1 < gone.median() < 0.3


def test_what_was_measured_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    trainer = trained(11, learning_rate=3e-2)
    save_checkpoint(trainer, tmp_path / "checkpoint")
    again = trained(0, learning_rate=3e-2)
    load_checkpoint(again, tmp_path / "checkpoint")
    assert torch.equal(again.model.recurrence.places, trainer.model.recurrence.places)
    for one in (trainer, again):  # up to a step before which is measured again
        for _, _ in zip(range(10), one.run(), strict=False):
            pass
    assert again.progress.step == 21 and torch.equal(again.model.recurrence.places, trainer.model.recurrence.places)
