"""Tokens: summary tokens of a window (Recurrent Memory Transformer), or of several (AutoCompressors).

Both feed summaries back as they are. A pretrained body has never seen such rows. So here summaries are added to learned
rows, times a scale for each channel that is zero at first: the state has no effect until it is learned.

Shape suffixes: B batch rows, N windows in the ring, M rows of one window, K hidden size.
"""

from __future__ import annotations

import torch
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.recurrences.seam import Recurrence, State, WindowPass

# Standard deviations of rows at first. Rows that are read start so small that they stay small behind the body's norms.
_READ, _WRITE = 0.001, 0.02


class Tokens(Recurrence):
    """Reads summaries of the windows before, like embedded tokens, and writes one of this window.

    The state is a ring of summaries, the newest last; zeros where there was no window.
    """

    def __init__(self, shape: Shape, state_tokens: int = 10, ring: int = 1) -> None:
        super().__init__(shape)
        self.read_NMK = nn.Parameter(torch.empty(ring, state_tokens, shape.hidden))
        self.write_MK = nn.Parameter(torch.empty(state_tokens, shape.hidden))
        self.scale_K = nn.Parameter(torch.zeros(shape.hidden))
        self.apply(self.reset)

    def reset(self, module: nn.Module) -> None:
        """Initialise this module or one inside it; Hugging Face calls it for each."""
        nn.init.normal_(self.read_NMK, std=_READ)
        nn.init.normal_(self.write_MK, std=_WRITE)
        nn.init.zeros_(self.scale_K)

    def reset_from_scratch(self) -> None:
        """Rows of the size of embeddings, and summaries as they are."""
        nn.init.normal_(self.read_NMK, std=_WRITE)
        nn.init.ones_(self.scale_K)

    def empty(self, batch_size: int) -> State:
        """Zeros."""
        return (self.read_NMK.new_zeros(batch_size, *self.read_NMK.shape),)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> TokensWindowPass:
        """Where a document begins, the ring is empty."""
        if state is None:
            return TokensWindowPass(self, None)
        [ring_BNMK] = state
        if fresh_B is not None:
            ring_BNMK = ring_BNMK.masked_fill(fresh_B[:, None, None, None], 0)
        return TokensWindowPass(self, ring_BNMK)


class TokensWindowPass(WindowPass):
    """A window between rows that it reads and rows that it writes."""

    def __init__(self, tokens: Tokens, ring_BNMK: torch.Tensor | None) -> None:
        self._tokens, self._ring_BNMK = tokens, ring_BNMK

    def before(self) -> torch.Tensor:
        """The ring's summaries, the newest window's next to the tokens."""
        rows_BNMK = self._tokens.read_NMK[None]
        if self._ring_BNMK is not None:
            rows_BNMK = rows_BNMK + self._tokens.scale_K * self._ring_BNMK
        return rows_BNMK.flatten(1, 2)

    def behind(self) -> torch.Tensor:
        """Learned rows whose outputs are the summary."""
        return self._tokens.write_MK[None]

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The ring without its oldest summary, with the new one."""
        assert behind_BMK is not None
        ring_BNMK = self._tokens.empty(len(behind_BMK))[0] if self._ring_BNMK is None else self._ring_BNMK
        return (torch.cat([ring_BNMK[:, 1:], behind_BMK[:, None]], dim=1),)

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders the ring."""
        if self._ring_BNMK is not None:
            self._ring_BNMK = self._ring_BNMK[index_B]
