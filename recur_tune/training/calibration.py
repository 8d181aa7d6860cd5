"""Calibration: texts of the training split on which a recurrence measures its body, at first and while that learns."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from recur_tune.config.trial import TrialConfig
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.models import Windowed
from recur_tune.ops.device import autocast

_FIRST = 512  # texts, of the whole context: a mean over them is off by a few hundredths of a token's own spread
_LATER, _EVERY = 32, 10  # and so many every so many steps: a hundredth of a step's work, as a rule
_WEIGHT = 0.2  # of these in the running mean, which so has the last 50 steps in it


class Calibration:
    """Whatever a recurrence has to know of its body as means over texts is measured, and follows the body."""

    def __init__(self, config: TrialConfig, model: Windowed, train: TokenisedSplit) -> None:
        self._config, self._model, self._train = config, model, train
        shape = model.config.shape
        rows = config.mechanism.positions(config.recurrence_spec, shape) if config.mechanism else 0
        self._context, self._places = shape.context, min(config.window + rows, shape.context)

    def before(self, step: int) -> None:
        """CalibrationPass, before the first step of all, and again where it is time and the body has moved."""
        if step == 0:
            self._model.calibrate(partial(stretches, self._train, self._context, _FIRST))
        elif step % _EVERY == 0 and self._config.trainable != "recurrence":
            generator = np.random.default_rng([self._config.seed, step])  # so that a resumed run draws the same
            with autocast(self._model.device, self._config.precision):
                self._model.calibrate(partial(stretches, self._train, self._places, _LATER, generator), _WEIGHT)


def stretches(
    split: TokenisedSplit, length: int, count: int, generator: np.random.Generator | None = None
) -> torch.Tensor:
    """So many stretches of a split, [N, T], or as many and as long as it has: from all over it, or drawn."""
    length = min(length, len(split.tokens))
    last, count = len(split.tokens) - length, min(count, len(split.tokens) // length)
    starts = np.linspace(0, last, count) if generator is None else generator.integers(last + 1, size=count)
    tokens = [split.tokens[start : start + length] for start in starts.astype(np.int64)]
    return torch.from_numpy(np.stack(tokens).astype(np.int64))
