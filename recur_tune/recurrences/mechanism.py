"""Mechanism: all that the rest of recur-tune knows of one way to pass a state from window to window.

Nothing here imports torch: flags, checks, closed-form costs and pictures need a mechanism's description, and only a
model needs its module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel

from recur_tune.common.deprecated import accepts_old_arguments
from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing


class Mark(NamedTuple):
    """How the trials of one kind are drawn.

    Attributes:
        word: What a legend calls them.
        marker: matplotlib's name of the shape.
        symbol: plotly's.
        colour: Where no second cost gives one.
    """

    word: str
    marker: str
    symbol: str
    colour: str


class Work(NamedTuple):
    """Forward FLOPs of one window as kernels are charged, whole squares of attention included.

    Attributes:
        made: Making the state that the window leaves.
        used: Using the state of the window before.
        carried: Bringing that state into the one that the window leaves, beyond making it: what a document's first
            window does not do.
    """

    made: float
    used: float
    carried: float = 0.0


@accepts_old_arguments(
    "0.4.0",
    both_ways="bidirectional",
    outside_products="flops_independent_fields",
    outside_state="state_independent_fields",
)
@dataclass(frozen=True)
class Mechanism:
    """A recurrence: its fields, where its module is, and what can be told of it without building it.

    Attributes:
        name: What users write; also in tables and files.
        spec: Its fields, a frozen pydantic model; each has a default and a description, the most telling first.
        module: Where its `Recurrence` (recur_tune.recurrences.seam) is, as `package.module:Class`.
        summary: One line for `--help` and the docs.
        mark: How its trials are drawn; None takes the next free one.
        first: Trials that a search tries first, by their role; of fields that they do not name windows are the
            baseline's and others are drawn.
        aliases: Other names that are understood.
        flops: Forward FLOPs that it adds to a window, a position's attention counted over what it sees; None has
            them counted by torch.
        work: The same as kernels are charged, for training; None has it counted by torch.
        state_floats: Numbers in the state of one batch row; None has them counted.
        from_the_start: Whether a document's first window has a state as well, a learned one.
        stops_gradients: Whether no gradient goes from a window to the one before, as its module says too.
        bidirectional: Whether it connects an encoder's windows too, which end in padding.
        leaves_overlap_out: Whether what the next window reads again is not in the state; a step's memory then depends
            on the overlap.
        kept_as_read: Whether a state's numbers have the precision in which a window is read; else single precision.
        positions: Given a spec and a body's shape, the positions that its rows take beside a window's own.
        flops_independent_fields: Fields that enter no matrix product.
        state_independent_fields: Fields that the size of the state does not depend on.
        check: Given a spec, a body's shape and its name, one sentence on what the body cannot do, or None.
    """

    name: str
    spec: type[BaseModel]
    module: str
    summary: str
    mark: Mark | None = None
    first: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    flops: Callable[[Any, Shape, Windowing], float] | None = None
    work: Callable[[Any, Shape, Windowing], Work] | None = None
    state_floats: Callable[[Any, Shape], int] | None = None
    from_the_start: bool = False
    stops_gradients: bool = False
    bidirectional: bool = False
    leaves_overlap_out: bool = True
    kept_as_read: bool = False
    positions: Callable[[Any, Shape], int] = lambda spec, shape: 0
    flops_independent_fields: frozenset[str] = frozenset()
    state_independent_fields: frozenset[str] = frozenset()
    check: Callable[[Any, Shape, str], str | None] = lambda spec, shape, base: None

    def load(self) -> Any:
        """Import its module; that takes torch's seconds."""
        place, _, name = self.module.partition(":")
        return getattr(importlib.import_module(place), name)

    def build(self, spec: BaseModel, shape: Shape) -> Any:
        """Its module for a body of this shape."""
        return self.load()(shape, **spec.model_dump())
