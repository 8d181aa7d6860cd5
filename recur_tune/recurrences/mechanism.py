"""Mechanism: the description of one way to pass a state from window to window.

It needs no torch: flags, checks, closed-form costs and pictures use the description, and only a model loads the module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel

from recur_tune.common.deprecated import accepts_old_arguments
from recur_tune.common.loading import named
from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing


class Mark(NamedTuple):
    """How a mechanism's trials are drawn.

    Attributes:
        word: Its name in legends.
        marker: matplotlib's name of the shape.
        symbol: plotly's.
        colour: Where colour does not show a second cost.
    """

    word: str
    marker: str
    symbol: str
    colour: str


class Work(NamedTuple):
    """Forward FLOPs of one window as kernels compute them: attention over the whole square, masked half included.

    Attributes:
        made: Making the state that the window leaves.
        used: Using the state of the window before.
        carried: Merging that state into the one that the window leaves; a document's first window does not.
    """

    made: float
    used: float
    carried: float = 0.0


class Held(NamedTuple):
    """Numbers that a stream holds between two tokens, at the end of a window that had a state.

    Attributes:
        as_read: In the precision of reading, such as keys and values.
        single: In single precision.
        quantised: Bytes of quantised numbers.
    """

    as_read: int
    single: int
    quantised: int = 0


@accepts_old_arguments(
    "0.4.0",
    both_ways="bidirectional",
    outside_products="flops_independent_fields",
    outside_state="state_independent_fields",
)
@dataclass(frozen=True, eq=False)  # there is one of each
class Mechanism:
    """A recurrence: its fields, its module's place, and its costs and properties.

    Attributes:
        name: In commands, tables and files.
        spec: Its fields, a frozen pydantic model; each has a default and a description, the most important first.
        module: Where its `Recurrence` (recur_tune.recurrences.seam) is, as `package.module:Class`.
        summary: One line for `--help` and the docs.
        mark: How its trials are drawn; None takes the next free one.
        first: Trials that a search tries first, by their role. Of fields that they do not set, windows are the
            baseline's and others are sampled.
        aliases: Other names for it.
        flops: Forward FLOPs that it adds to a window, attention counted over visible positions; None: torch counts.
        work: The same as kernels compute it, for training; None: torch counts.
        state_floats: Numbers in the state of one batch row, without quantised ones; None: they are counted.
        quantised_bytes: Bytes of quantised numbers in it.
        held: What a stream holds beside the key-value cache of a window's own tokens; None: the state alone.
        from_the_start: Whether a document's first window has a state too, a learned one.
        stops_gradients: Whether no gradient goes from a window to the one before; its module says the same.
        bidirectional: Whether it also connects an encoder's windows, which end in padding.
        leaves_overlap_out: Whether tokens that the next window reads again are left out of the state; a step's memory
            then depends on the overlap.
        backward_of_making: Backward FLOPs of making a state, over the forward ones: 2 where both factors of products
            have gradients. Where `stops_gradients`, there are none.
        composed_of: Its parts, where it is a composition.
        kept_as_read: Whether a state has the dtype of a window's products; else it has single precision.
        positions: Given a spec and a body's shape, how many of the base's positions its rows take.
        flops_independent_fields: Fields that enter no matrix product.
        state_independent_fields: Fields that the sizes of the state and of what is held do not depend on.
        check: Given a spec, a body's shape and its name, a sentence on what the body does not support, or None.
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
    quantised_bytes: Callable[[Any, Shape], int] = lambda spec, shape: 0
    held: Callable[[Any, Shape, Windowing], Held] | None = None
    from_the_start: bool = False
    stops_gradients: bool = False
    bidirectional: bool = False
    leaves_overlap_out: bool = True
    backward_of_making: float = 2.0
    composed_of: tuple[Mechanism, ...] = ()
    kept_as_read: bool = False
    positions: Callable[[Any, Shape], int] = lambda spec, shape: 0
    flops_independent_fields: frozenset[str] = frozenset()
    state_independent_fields: frozenset[str] = frozenset()
    check: Callable[[Any, Shape, str], str | None] = lambda spec, shape, base: None

    def load(self) -> Any:
        """Import its module, which loads torch and so takes seconds."""
        return named(self.module)

    @property
    def parts(self) -> tuple[Mechanism, ...]:
        """Those of a composition, each with costs of its own; else itself."""
        return self.composed_of or (self,)

    def build(self, spec: BaseModel, shape: Shape) -> Any:
        """Its module for a body of this shape."""
        from recur_tune.recurrences.composition import built  # loads torch

        return built([part.load() for part in self.parts], shape, spec.model_dump())
