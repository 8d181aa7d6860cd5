"""Tokens: rows that sum a window up (Recurrent Memory Transformer), of several windows if need be (AutoCompressors).

Shape suffixes: B lanes, N windows in the ring, M rows of one window, K hidden size.
"""

from __future__ import annotations

import torch
from torch import nn

from recur_tune.model.recurrence import Passage, Recurrence, State
from recur_tune.shape import Shape

_SPREAD = 0.02


class Tokens(Recurrence):
    """Read the summaries of the windows before as if they were embedded tokens, and write one more.

    The state is a ring of summaries, the newest last. A document's first window reads a learned one.
    """

    def __init__(self, shape: Shape, state_tokens: int = 10, ring: int = 1) -> None:
        super().__init__(shape)
        self.initial_NMK = nn.Parameter(torch.empty(ring, state_tokens, shape.hidden))
        self.write_MK = nn.Parameter(torch.empty(state_tokens, shape.hidden))
        self.apply(self.reset)

    def reset(self, module: nn.Module) -> None:
        """Initialise one of the modules in here; Hugging Face asks for each in turn."""
        for parameter in (self.initial_NMK, self.write_MK):
            nn.init.normal_(parameter, std=_SPREAD)

    def empty(self, lanes: int) -> State:
        """Zeros."""
        return (self.initial_NMK.new_zeros(lanes, *self.initial_NMK.shape),)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> TokensPassage:
        """Lanes that begin a document have the learned ring."""
        ring_BNMK = self.initial_NMK[None]
        if state is not None:
            begins_B111 = None if fresh_B is None else fresh_B[:, None, None, None]
            ring_BNMK = state[0] if begins_B111 is None else torch.where(begins_B111, ring_BNMK, state[0])
        return TokensPassage(self, ring_BNMK)


class TokensPassage(Passage):
    """A window between rows that it reads and rows that it writes."""

    def __init__(self, tokens: Tokens, ring_BNMK: torch.Tensor) -> None:
        self._tokens, self._ring_BNMK = tokens, ring_BNMK

    def before(self) -> torch.Tensor:
        """All summaries of the ring."""
        return self._ring_BNMK.flatten(1, 2)

    def behind(self) -> torch.Tensor:
        """What asks for a summary."""
        return self._tokens.write_MK[None]

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The ring without its oldest summary, and the new one."""
        assert behind_BMK is not None
        older_BNMK = self._ring_BNMK[:, 1:].expand(len(behind_BMK), -1, -1, -1)
        return (torch.cat([older_BNMK, behind_BMK[:, None]], dim=1),)

    def reorder(self, lane_B: torch.Tensor) -> None:
        """Summaries go along, but for the learned ones, which all lanes share."""
        if len(self._ring_BNMK) > 1:
            self._ring_BNMK = self._ring_BNMK[lane_B]
