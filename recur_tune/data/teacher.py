"""Teacher predictions: for every token of a text the likeliest next ones of a model, kept beside the text's tokens.

Of a token's distribution the k largest probabilities are kept, and the mass of all others together, as logarithms in
half precision.

Shape suffixes: W windows of a chain, B rows of a batch, T positions of a window, N tokens of a split, Q likeliest
tokens, R the same and the rest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from recur_tune.common.files import mapped, reading


class TeacherRows(NamedTuple):
    """A teacher's predictions for a batch of windows, ready for the model.

    Attributes:
        tokens: The likeliest next tokens of each position, [..., Q].
        log_p: Logarithms of their probabilities and, last, of the rest's, [..., R].
        weight: Of the divergence from them in the loss.
    """

    tokens: torch.Tensor
    log_p: torch.Tensor
    weight: float

    def to(self, device: torch.device | str) -> TeacherRows:
        """The same on a device."""
        return TeacherRows(
            self.tokens.to(device, non_blocking=True), self.log_p.to(device, non_blocking=True), self.weight
        )

    def of_window(self, window: int) -> TeacherRows:
        """The rows of one window, [N, ...]."""
        return TeacherRows(self.tokens[window].flatten(0, 1), self.log_p[window].flatten(0, 1), self.weight)

    def clone(self) -> TeacherRows:
        """A copy, for a CUDA graph to read from."""
        return TeacherRows(self.tokens.clone(), self.log_p.clone(), self.weight)


@dataclass(frozen=True)
class TeacherPredictions:
    """The predictions for a whole split: row i is the distribution of the token behind token i."""

    tokens_NQ: np.ndarray
    log_p_NR: np.ndarray

    def rows(self, index: np.ndarray, weight: float) -> TeacherRows:
        """Those of some tokens."""
        tokens, log_p = self.tokens_NQ[index], self.log_p_NR[index]
        return TeacherRows(torch.from_numpy(tokens.astype(np.int32)), torch.from_numpy(log_p), weight)


def open_predictions(folder: Path) -> TeacherPredictions:
    """Predictions as `tokens.bin`, `log_p.bin` and `meta.json`, memory-mapped."""
    with reading(folder):
        meta = json.loads((folder / "meta.json").read_text())
        top = meta["top"]
        return TeacherPredictions(
            mapped(folder / "tokens.bin", meta["token_type"]).reshape(-1, top),
            mapped(folder / "log_p.bin", "float16").reshape(-1, top + 1),
        )
