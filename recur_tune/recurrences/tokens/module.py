"""Tokens: rows that sum a window up (Recurrent Memory Transformer), of several windows if need be (AutoCompressors).

Both feed summaries back as they are. To a pretrained body these are rows like none that it has seen, so here they are
added to learned rows, times a scale for each channel that is zero at first: what a state says comes in as it is
learned.

Shape suffixes: B batch rows, N windows in the ring, M rows of one window, K hidden size.
"""

from __future__ import annotations

import torch
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.recurrences.seam import Recurrence, State, WindowPass

# Of rows at first. Those that are read are so small that a body's norms leave them small, and they say little.
_READ, _WRITE = 0.001, 0.02


class Tokens(Recurrence):
    """Read rows that carry the summaries of the windows before as if they were embedded tokens, and write a summary.

    The state is a ring of summaries, the newest last, of zeros where there was no window.
    """

    def __init__(self, shape: Shape, state_tokens: int = 10, ring: int = 1) -> None:
        super().__init__(shape)
        self.read_NMK = nn.Parameter(torch.empty(ring, state_tokens, shape.hidden))
        self.write_MK = nn.Parameter(torch.empty(state_tokens, shape.hidden))
        self.scale_K = nn.Parameter(torch.zeros(shape.hidden))
        self.apply(self.reset)

    def reset(self, module: nn.Module) -> None:
        """Initialise one of the modules in here; Hugging Face asks for each in turn."""
        nn.init.normal_(self.read_NMK, std=_READ)
        nn.init.normal_(self.write_MK, std=_WRITE)
        nn.init.zeros_(self.scale_K)

    def empty(self, batch_size: int) -> State:
        """Zeros."""
        return (self.read_NMK.new_zeros(batch_size, *self.read_NMK.shape),)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> TokensWindowPass:
        """Batch rows that begin a document have an empty ring."""
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
        """One row for each of the ring, the newest window's next to the tokens."""
        rows_BNMK = self._tokens.read_NMK[None]
        if self._ring_BNMK is not None:
            rows_BNMK = rows_BNMK + self._tokens.scale_K * self._ring_BNMK
        return rows_BNMK.flatten(1, 2)

    def behind(self) -> torch.Tensor:
        """What asks for a summary."""
        return self._tokens.write_MK[None]

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The ring without its oldest summary, and the new one."""
        assert behind_BMK is not None
        ring_BNMK = self._tokens.empty(len(behind_BMK))[0] if self._ring_BNMK is None else self._ring_BNMK
        return (torch.cat([ring_BNMK[:, 1:], behind_BMK[:, None]], dim=1),)

    def reorder(self, index_B: torch.Tensor) -> None:
        """The ring goes along."""
        if self._ring_BNMK is not None:
            self._ring_BNMK = self._ring_BNMK[index_B]
