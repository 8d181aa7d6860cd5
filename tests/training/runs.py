"""A text that is there at once, and trainers on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from recur_tune.bptt.plan import fixed_plan
from recur_tune.config.trial import TrialConfig
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.training.loop import Trainer
from tests.conftest import small_model

VOCABULARY = 61


def split_of(lengths: list[int], seed: int = 0) -> TokenisedSplit:
    """Documents of random tokens in which each is likely to be followed by its successor, so that there is something
    to learn; every third token begins a word, and every token is two bytes long."""
    random = np.random.default_rng(seed)
    total = sum(lengths)
    steps = np.where(random.random(total) < 0.8, 1, random.integers(VOCABULARY, size=total))
    return TokenisedSplit(
        tokens=np.cumsum(steps) % VOCABULARY,
        word_starts=(np.arange(total) % 3 == 0).astype(np.uint16),
        byte_lengths=np.full(total, 2, dtype=np.uint16),
        document_starts=np.cumsum([0, *lengths]),
        answers=np.zeros(0, dtype=np.int64),
    )


def trial(**fields: Any) -> TrialConfig:
    """A small trial; `fields` change it."""
    usual: dict[str, Any] = {
        "window": 8, "overlap": 2, "bptt_windows": 3, "batch": 4, "tokens": 1000, "validate_every": 300,
        "learning_rate": 3e-3, "warmup_steps": 4, "width": 16, "depth": 1,
    }  # fmt: skip
    return TrialConfig(**usual | fields)


def trainer_of(config: TrialConfig, **model: Any) -> Trainer:
    """A trainer on random text, in single or, with `double=True`, double precision; workers may `shard` moments."""
    double, shard = model.pop("double", False), model.pop("shard", False)
    torch.manual_seed(config.seed)
    network = small_model(config.recurrence_spec, **{"n_layer": 2} | model)
    if double:
        network = network.double()
    plan = fixed_plan("all" if config.checkpointing == "auto" else config.checkpointing, config.bptt_windows)
    train, validation = split_of([150, 7, 90, 33, 200]), split_of([60, 20], seed=1)
    return Trainer(config, network, plan, train, validation, torch.device("cpu"), shard)


def flip(file: Path) -> None:
    """Damage a file as a disk does, in one bit of its middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
