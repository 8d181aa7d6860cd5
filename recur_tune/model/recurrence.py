"""The seam between a body and a recurrence: what one window leaves for the next, and how the next uses it.

A recurrence opens a *passage* for each window, from the state that the window before left. On the way through the
blocks the reader calls the passage's hooks; closing it gives the next state. A mechanism is one module in
`recurrences/` (or in somebody else's package) and a description in `recur_tune.recurrences`, which gives it its name
and its fields. Nothing else asks which one it is.

Shape suffixes: B lanes, T positions, M inserted embeddings, K hidden size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from recur_tune.shape import Shape

State = tuple[torch.Tensor, ...]  # lanes first; only the recurrence knows what they are


class Passage:
    """One window's way through the blocks. Every hook does nothing by default.

    Attributes:
        wants: What `observe` is given of a layer: its outputs, or their mean over positions, which is cheaper.
    """

    wants: Literal["outputs", "means"] = "outputs"

    def inserted(self, layer: int) -> torch.Tensor | None:
        """Embeddings [B, M, K] that a layer, counted from 0, may attend to beside its own positions: the layer's own
        norm and projections make keys and values of them. Lanes that begin a document do not see them."""
        return None

    def observe(self, layer: int, output: torch.Tensor) -> None:
        """A layer's outputs [B, T, K], in the order of layers. Of a window that is read in parts, this part's."""

    def close(self) -> State:
        """The state that the window leaves, as far as it was read."""
        raise NotImplementedError

    def reorder(self, lane_B: torch.Tensor) -> None:
        """Put other lanes in the lanes' places."""
        raise NotImplementedError


class Recurrence(nn.Module):
    """What connects a body's windows."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def empty(self, lanes: int) -> State:
        """A state for lanes that have none, which must not be seen."""
        raise NotImplementedError

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> Passage:
        """Begin a window.

        Args:
            state: What the window before left; None before a first one.
            fresh_B: Lanes that begin a document and must not see it; None means that all may.
            in_parts: Whether the window may be read in several parts, as text is generated.
        """
        raise NotImplementedError

    def reset(self, module: nn.Module) -> None:
        """Initialise one of the modules in here; Hugging Face asks for each in turn."""
