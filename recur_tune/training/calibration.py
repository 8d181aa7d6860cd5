"""Calibration: a recurrence measures means of its body on training texts, before the first step and while it learns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from recur_tune.config.trial import TrialConfig
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.models import Windowed
from recur_tune.ops.device import autocast

_FIRST = 512  # texts of the full context; their mean is off by a few hundredths of a token's standard deviation
_LATER, _EVERY = 32, 10  # texts every so many steps: about a hundredth of a step's work
_WEIGHT = 0.2  # of the later texts in the running mean, which covers about 50 steps


class Calibration:
    """Keeps a recurrence's measured means up to date with its body."""

    def __init__(self, config: TrialConfig, model: Windowed, train: TokenisedSplit) -> None:
        self._config, self._model, self._train = config, model, train
        shape = model.config.shape
        rows = config.mechanism.positions(config.recurrence_spec, shape) if config.mechanism else 0
        self._places = min(config.window + rows, shape.context)

    def before(self, step: int) -> None:
        """Calibrate before the first step, and every few steps while the body learns."""
        if step == 0:
            calibrate_first(self._model, lambda: self._train)
        elif step % _EVERY == 0 and self._config.trainable != "recurrence":
            generator = np.random.default_rng([self._config.seed, step])  # a resumed run draws the same
            with autocast(self._model.device, self._config.precision):
                self._model.calibrate(partial(stretches, self._train, self._places, _LATER, generator), _WEIGHT)


def calibrate_first(model: Windowed, train: Callable[[], TokenisedSplit]) -> None:
    """Calibrate before any training; `train` makes the training texts, and is called only if something is measured."""
    model.calibrate(lambda: stretches(train(), model.config.shape.context, _FIRST))


def stretches(
    split: TokenisedSplit, length: int, count: int, generator: np.random.Generator | None = None
) -> torch.Tensor:
    """So many stretches of a split, [N, T], or as many as it has: evenly spaced, or random."""
    length = min(length, len(split.tokens))
    last, count = len(split.tokens) - length, min(count, len(split.tokens) // length)
    starts = np.linspace(0, last, count) if generator is None else generator.integers(last + 1, size=count)
    tokens = [split.tokens[start : start + length] for start in starts.astype(np.int64)]
    return torch.from_numpy(np.stack(tokens).astype(np.int64))
