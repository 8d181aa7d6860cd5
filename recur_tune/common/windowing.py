"""Windowing (the paper's section 4.2): which tokens a window reads, and which it scores.

A document of N tokens has N-1 inputs, each predicting the token after it. Windows of `size` inputs begin
every `size - overlap` inputs; the first `overlap` inputs of every window but the first were scored by the
window before and are read only for context. So every token after the first is scored exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The columns of a table of windows. Inputs are tokens[begin:end], their targets tokens[begin+1:end+1],
# and the positions in [scored_from, end) count towards the loss.
BEGIN, END, SCORED_FROM = 0, 1, 2

NOT_SCORED = -100  # the target of a position that is not scored: torch's ignore_index
STARTS, ENDS = 1, 2  # targets of positions where an answer starts or ends; 0 elsewhere


@dataclass(frozen=True)
class Windowing:
    """How a document is read: windows of `size` tokens, `overlap` of them shared with the window before; `reserved`
    ones hold a question and not the document."""

    size: int
    overlap: int = 0
    reserved: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.overlap < self.room:
            beside = f" beside {self.reserved} tokens that are reserved" if self.reserved else ""
            raise ValueError(f"a window of {self.size} cannot overlap by {self.overlap}{beside}")

    @property
    def room(self) -> int:
        """Tokens of the document in a full window."""
        return self.size - self.reserved

    @property
    def stride(self) -> int:
        """New tokens scored by every window after a document's first."""
        return self.room - self.overlap

    def in_patches(self, patch: int) -> Windowing:
        """The same in positions of so many tokens."""
        return Windowing(self.size // patch, self.overlap // patch, self.reserved // patch)

    def span(self, windows: int) -> int:
        """Inputs covered by a chain of full windows."""
        return self.room + (windows - 1) * self.stride

    def count(self, inputs: int) -> int:
        """Windows needed for a document, or part of one, with this many inputs."""
        if inputs <= 0:
            return 0
        return 1 + max(0, -(-(inputs - self.room) // self.stride))

    def cut(self, begin: int, end: int) -> np.ndarray:
        """The windows that read the inputs [begin, end) of a token array, as rows (BEGIN, END, SCORED_FROM).

        The last window may be short, and a document shorter than a window is one short window.
        """
        begins = begin + self.stride * np.arange(self.count(end - begin), dtype=np.int64)
        scored_from = begins + self.overlap
        scored_from[:1] = begin
        return np.stack([begins, np.minimum(begins + self.room, end), scored_from], axis=1)
