"""The interface between a body and a recurrence: what one window leaves for the next, and how the next uses it.

A recurrence opens a *window pass* for each window, from the state that the window before left. The loop over blocks
calls its hooks; closing it gives the next state. A mechanism is one folder in `recurrences/`, or a package of its own:
a description, which gives it its name and its fields, and a module. No other code depends on which one it is.

Shape suffixes: B batch rows, T positions, M inserted rows, K hidden size, H heads of queries, G of keys and values,
D head size, C columns, S sites (layers with a state), N rows that leave one, F units of an MLP.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from recur_tune.common.deprecated import warn_once
from recur_tune.common.shape import Shape

# Floating-point, or bytes, which have no gradient; batch rows first. Their meaning is the recurrence's own.
State = tuple[torch.Tensor, ...]
Heads = Callable[[], tuple[torch.Tensor, ...]]  # makes q [B, H, T, D], k and v [B, G, T, D]
Rotary = Callable[[torch.Tensor, int], torch.Tensor]  # of heads [B, H, T, D], the first of which has this position


GATE_SPEED = 30.0
CLOSED_GATE = -4.0 / GATE_SPEED  # lets 1.8 % through: training begins almost at the body's quality, and can open it


class Rows(NamedTuple):
    """Keys and values that leave an exact state, before rotary position embeddings and without gradients.

    Attributes:
        k_BSGND: Keys, in the text's order.
        v_BSGND: Values.
        is_row_BSGN: Which of them are rows; the others fill up to a fixed number. None: all.
    """

    k_BSGND: torch.Tensor
    v_BSGND: torch.Tensor
    is_row_BSGN: torch.Tensor | None


class WindowPass:
    """Hooks of one window's pass through the blocks. Each does nothing by default; layers are counted from 0.

    When a window is read in parts, as in generation, the hooks see one part after another.

    Attributes:
        wants: What `observe` gets of a layer: its outputs, or their means over positions, which cost less.
        stretches: How many such means: of the last position, the two before it, the four before these, and so on; the
            last is of all that are left.
        seen_B: Of the rows that are inserted into a layer, how many each batch row sees, counted from the last; None:
            all, and none where a document begins.
        moved_B: Offset of the window's learned positions in each batch row; None: 0. Rotary positions need none: they
            are counted from the window's first token, and rows before it have negative ones.
        fused: Whether it runs its Triton kernels, where it has any; else reference operations.
        rotary: Applies the body's rotary position embeddings; None where positions are learned. The decoder sets it.
        whole_heads: Whether, of a window that is read in parts, `heads` gives the keys and values of all parts so far.
            These are the key-value cache's own, so a pass that needs them at the window's end holds no second copy.
            Then rows are asked for with each part, and there may be none `behind` the window.
        unit_layers: Layers whose MLP's units it gets.
    """

    wants: Literal["outputs", "means"] = "outputs"
    whole_heads: bool = False
    unit_layers: Collection[int] = ()
    stretches: int = 1
    seen_B: torch.Tensor | None = None
    moved_B: torch.Tensor | None = None
    fused: bool = False
    rotary: Rotary | None = None

    def before(self) -> torch.Tensor | None:
        """Rows [B, M, K], or [1, M, K] for all batch rows, that stand before the window's embedded tokens and go
        through all layers with them. They are never scored. They have no learned position; rotary ones are counted back
        from the window's first."""
        return None

    def behind(self) -> torch.Tensor | None:
        """The same behind the window, where it leaves a state; `close` gets the last layer's output for them."""
        return None

    def inserted(self, layer: int) -> torch.Tensor | None:
        """Embeddings [B, M, K] that a layer attends to beside its own positions; its own norm and projections make keys
        and values of them."""
        return None

    def keys_values(self, layer: int) -> torch.Tensor | None:
        """The same as keys and values side by side, [B, M, 2 G D], before rotary position embeddings; the rows stand
        before the window, one behind the other."""
        return None

    def places(self, layer: int) -> torch.Tensor | None:
        """What places add to these rows, [M, 2 G D]; the rows that are seen stand at the first places."""
        return None

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Change the heads' output, side by side, before the output projection; `heads` makes queries, keys and values
        before rotary position embeddings."""
        return out_BTC

    def branch(self, layer: int, x_BTK: torch.Tensor) -> torch.Tensor | None:
        """Addition to the residual stream beside attention's output; `x_BTK` is the stream where a layer begins."""
        return None

    def units(self, layer: int, x_BTK: torch.Tensor, unit_BTF: torch.Tensor) -> torch.Tensor | None:
        """Addition to the MLP's output, of a layer in `unit_layers`; `x_BTK` is the stream where the MLP begins, and
        `unit_BTF` are its activated units."""
        return None

    def observe(self, layer: int, output: torch.Tensor) -> None:
        """A layer's outputs [B, T, K], or means [B, M, K], in the order of layers; the last one's are normalised."""

    def rest(self) -> None:
        """Between two parts of a window: let go of what can be made again or summed up, since inference memory is what
        is held here."""

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The state that the window leaves, as far as it was read.

        Args:
            overlap: Positions at its end that the next window reads again; a state that stores tokens leaves them out.
            behind_BMK: The last layer's output, normalised, at the rows `behind` the window; None where there are none.
        """
        raise NotImplementedError

    def leaving(self, layers: list[int], overlap: int) -> Rows:
        """Of an exact state, after `close`: the rows of these layers that this window's state no longer holds, for an
        overflow."""
        raise NotImplementedError

    def reorder(self, index_B: torch.Tensor) -> None:
        """Take the batch rows at these indices, as beam search does."""
        raise NotImplementedError


class OverflowPass(WindowPass):
    """The pass of a compressed state that rows are written into.

    Attributes:
        takes_own: Whether it takes the window's own positions when the window ends; else rows are given to `write`.
    """

    takes_own: bool = True

    def write(self, rows: Rows) -> State:
        """The state that the window leaves, after these rows."""
        raise NotImplementedError


class CalibrationPass(WindowPass):
    """Calibration: texts are read without a state, and the recurrence measures the body."""

    def take(self, weight: float) -> None:
        """Store what was measured, by this weight against earlier measurements."""
        raise NotImplementedError


class Recurrence(nn.Module):
    """The module that connects a body's windows.

    Attributes:
        stops_gradients: Whether no gradient goes from a window to the one before; then every window is differentiated
            when it is read.
    """

    stops_gradients = False

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def empty(self, batch_size: int) -> State:
        """A placeholder state for batch rows that begin a document."""
        raise NotImplementedError

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> WindowPass:
        """Begin a window.

        Args:
            state: What the window before left; None for a first window.
            fresh_B: Batch rows that begin a document and must not see the state; None: no row does.
            in_parts: Whether the window may be read in several parts, as in generation.
        """
        raise NotImplementedError

    def calibrated_by(self) -> CalibrationPass | None:
        """A pass that measures the body; None: nothing has to be measured."""
        return None

    def reset(self, module: nn.Module) -> None:
        """Initialise this module or one inside it. Hugging Face calls it for each, and a module's own `__init__` ends
        with `self.apply(self.reset)`."""

    def reset_from_scratch(self) -> None:
        """Beside a body of random weights: initialise what `reset` closes for a pretrained one as the source does. By
        default nothing is closed."""


class Overflow(Recurrence):
    """A recurrence that can stand behind an exact state too, and take the rows that leave it.

    Beside an exact state its pass inserts no rows; it may change heads' outputs, and add to the stream.

    Attributes:
        sites: The layers whose rows it takes.
    """

    sites: list[int]

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> OverflowPass:
        """Begin a window."""
        raise NotImplementedError


def layers_at(layer: int | str, shape: Shape) -> list[int]:
    """Layers counted from 0, from a field that counts from 1 or is 'all'."""
    return list(range(shape.layers)) if layer == "all" else [int(layer) - 1]


def every_nth(interval: int, shape: Shape) -> list[int]:
    """Every n-th layer, counted from 0: n - 1, 2n - 1, and so on; the last one where there are fewer."""
    return list(range(interval - 1, shape.layers, interval)) or [shape.layers - 1]


def gate(parameter: torch.Tensor) -> torch.Tensor:
    """Sigmoid of a logit that is stored divided by GATE_SPEED.

    Adam moves every parameter by about its learning rate a step. That suits weights, which change by hundredths; a
    logit would take thousands of steps to open a gate.
    """
    return (GATE_SPEED * single(parameter)).sigmoid()


def single(x: torch.Tensor) -> torch.Tensor:
    """In at least single precision, which sums over windows need."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def as_given(x: torch.Tensor) -> AbstractContextManager[None]:
    """A context without autocast: products have their factors' dtype."""
    device = x.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)  # meta has no autocast


def load_kernels(module: str) -> Any:
    """Import a mechanism's Triton kernels: by name, since a saved model's code comes without them, and when a step runs
    them, since loading Triton takes a while."""
    return importlib.import_module(module)


def __getattr__(name: str) -> Any:
    """Classes by their old names."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_once(name, _RENAMED[name].__name__, "0.4.0")
    return _RENAMED[name]


_RENAMED = {"Passage": WindowPass, "Measure": CalibrationPass}
