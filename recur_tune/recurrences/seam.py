"""The seam between a body and a recurrence: what one window leaves for the next, and how the next uses it.

A recurrence opens a *window pass* for each window, from the state that the window before left. On the way through the
blocks the reader calls its hooks; closing it gives the next state. A mechanism is one folder
in `recurrences/`, or a package of its own: a description, which gives it its name and its fields, and a module. Nothing
else asks which one it is.

Shape suffixes: B batch rows, T positions, M inserted rows, K hidden size, H heads of queries, G of keys and values,
D head size, C columns.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from recur_tune.common.deprecated import warn_once
from recur_tune.common.shape import Shape

State = tuple[torch.Tensor, ...]  # floating-point, batch rows first; only the recurrence knows what they are
Heads = Callable[[], tuple[torch.Tensor, ...]]  # makes q [B, H, T, D], k and v [B, G, T, D]


GATE_SPEED = 30.0
CLOSED_GATE = -4.0 / GATE_SPEED  # lets 1.8 % through: training begins almost at the body's quality, and can open it


class WindowPass:
    """One window's way through the blocks. Every hook does nothing by default; layers are counted from 0.

    Of a window that is read in parts (as text is generated) the hooks see one part after another.

    Attributes:
        wants: What `observe` is given of a layer: its outputs, or their means over positions, which is cheaper.
        stretches: How many such means: over the last position, over the two before it, over the four before these, and
            so on; the last is over all that are left.
        seen_B: Of the rows that are inserted into a layer, how many each batch row sees, counted from the last; None:
            all, and none where a document begins.
        moved_B: Offset of the window's learned positions in each batch row; None: 0. Rotary positions need none: they
            are counted from the window's first token, and rows before it have negative ones.
        fused: Whether it runs its Triton kernels, where it has any; else reference operations.
    """

    wants: Literal["outputs", "means"] = "outputs"
    stretches: int = 1
    seen_B: torch.Tensor | None = None
    moved_B: torch.Tensor | None = None
    fused: bool = False

    def before(self) -> torch.Tensor | None:
        """Rows [B, M, K], or [1, M, K] for all batch rows, that stand before the window's embedded tokens and go
        through all layers with them. They are never scored. They have no learned position; rotary ones are counted back
        from the window's first."""
        return None

    def behind(self) -> torch.Tensor | None:
        """The same behind the window, asked for when a state is to be left; `close` is given what became of them."""
        return None

    def inserted(self, layer: int) -> torch.Tensor | None:
        """Embeddings [B, M, K] that a layer may attend to beside its own positions: its own norm and projections make
        keys and values of them."""
        return None

    def keys_values(self, layer: int) -> torch.Tensor | None:
        """The same as ready keys and values side by side, [B, M, 2 G D]. Rotary positions are not in them yet: they
        stand before the window, one behind the other."""
        return None

    def places(self, layer: int) -> torch.Tensor | None:
        """What is added to these rows by where they stand, [M, 2 G D], those that are seen at the first."""
        return None

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """What a layer's heads took, side by side, on its way to the output projection; `heads` gives queries, keys and
        values, before rotary positions."""
        return out_BTC

    def branch(self, layer: int, x_BTK: torch.Tensor) -> torch.Tensor | None:
        """What is added to the residual stream beside attention's output; `x_BTK` is the stream where a layer
        begins."""
        return None

    def observe(self, layer: int, output: torch.Tensor) -> None:
        """A layer's outputs [B, T, K], or means [B, M, K], in the order of layers; the last one's are normalised."""

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The state that the window leaves, as far as it was read.

        Args:
            overlap: Positions at its end that the next window reads again: what is stored token by token leaves them
                out.
            behind_BMK: The last layer's output, normalised, at the rows `behind` the window; None where there are none.
        """
        raise NotImplementedError

    def reorder(self, index_B: torch.Tensor) -> None:
        """Take the batch rows at these indices, as beam search does."""
        raise NotImplementedError


class CalibrationPass(WindowPass):
    """Texts that are read without a state, so that a recurrence gets to know the body."""

    def take(self, weight: float) -> None:
        """Take over what was seen: by this weight, against what was known before."""
        raise NotImplementedError


class Recurrence(nn.Module):
    """What connects a body's windows.

    Attributes:
        stops_gradients: Whether no gradient goes from a window to the one before: then every window is differentiated
            as soon as it is read.
    """

    stops_gradients = False

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def empty(self, batch_size: int) -> State:
        """A state for batch rows that have none, which must not be seen."""
        raise NotImplementedError

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> WindowPass:
        """Begin a window.

        Args:
            state: What the window before left; None before a first one.
            fresh_B: Batch rows that begin a document and must not see it; None means that all may.
            in_parts: Whether the window may be read in several parts, as text is generated.
        """
        raise NotImplementedError

    def calibrated_by(self) -> CalibrationPass | None:
        """What measures the body, where the recurrence must know something of it; None: nothing."""
        return None

    def reset(self, module: nn.Module) -> None:
        """Initialise one of the modules in here; Hugging Face asks for each in turn."""


def layers_at(layer: int | str, shape: Shape) -> list[int]:
    """A layer that users count from 1, or 'all', as the reader counts them, from 0."""
    return list(range(shape.layers)) if layer == "all" else [int(layer) - 1]


def gate(parameter: torch.Tensor) -> torch.Tensor:
    """Sigmoid of a logit that is kept divided by GATE_SPEED.

    Adam moves every number by about its learning rate a step. At the rate of weights, which have hundredths to go, a
    logit would take thousands of steps to open a gate.
    """
    return (GATE_SPEED * single(parameter)).sigmoid()


def single(x: torch.Tensor) -> torch.Tensor:
    """In single precision, where it has less: what is summed up over windows needs it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def as_given(x: torch.Tensor) -> AbstractContextManager[None]:
    """A context in which products have the type of their factors, whatever autocast would make of them."""
    device = x.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)  # which meta does not know


def load_kernels(module: str) -> Any:
    """Import a mechanism's Triton kernels: by name, since a saved model's code comes without them, and when a step
    first runs them, since loading Triton takes a while."""
    return importlib.import_module(module)


def __getattr__(name: str) -> Any:
    """Classes by their old names."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_once(name, _RENAMED[name].__name__, "0.4.0")
    return _RENAMED[name]


_RENAMED = {"Passage": WindowPass, "Measure": CalibrationPass}
