"""Composition of an exact part with a compressed one, or with a part of another kind.

All see every window. Rows that leave the exact part are written into its overflow; a part beside it sees to its own
state. The state is all states side by side, and gradients stop only where all parts stop them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.recurrences.seam import (
    CalibrationPass,
    Heads,
    Overflow,
    OverflowPass,
    Recurrence,
    Rotary,
    State,
    WindowPass,
)


def built(modules: Sequence[type[Recurrence]], shape: Shape, fields: Mapping[str, Any]) -> Recurrence:
    """A recurrence of these parts, the exact one first, each with those of the fields that are its own."""
    exact, *others = (module(shape, **own_fields(module, fields)) for module in modules)
    if not others:
        return exact
    overflow = next((part for part in others if isinstance(part, Overflow)), None)
    return Composition(exact, overflow, next((part for part in others if part is not overflow), None))


def own_fields(module: type[Recurrence], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a module takes; `kind`, in a configuration, names the mechanism."""
    parameters = inspect.signature(module).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return {name: value for name, value in fields.items() if name in parameters or (takes_all and name != "kind")}


class Composition(Recurrence):
    """An exact part, an overflow that takes the rows which leave it, and a part beside it; one of the last two may be
    missing."""

    def __init__(self, exact: Recurrence, overflow: Overflow | None, beside: Recurrence | None) -> None:
        super().__init__(exact.shape)
        self.exact, self.overflow, self.beside = exact, overflow, beside
        self.stops_gradients = all(part.stops_gradients for part in self.parts)

    @property
    def parts(self) -> list[Recurrence]:
        """Those that there are, in the order of their states."""
        return [part for part in (self.exact, self.overflow, self.beside) if part is not None]

    def empty(self, batch_size: int) -> State:
        """Those of all parts."""
        return tuple(tensor for part in self.parts for tensor in part.empty(batch_size))

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> CompositionPass:
        """All parts begin the window."""
        opened, end = dict[Recurrence, WindowPass](), 0
        for part in self.parts:
            begin, end = end, end + len(part.empty(0))
            opened[part] = part.open(None if state is None else state[begin:end], fresh_B, in_parts)
        behind = opened[self.overflow] if self.overflow is not None else None
        assert behind is None or isinstance(behind, OverflowPass), "an overflow takes rows"
        if behind is not None:
            behind.takes_own = False
        sites = [] if self.overflow is None else self.overflow.sites
        return CompositionPass(opened[self.exact], behind, sites, None if self.beside is None else opened[self.beside])

    def calibrated_by(self) -> CalibrationPass | None:
        """The exact part's measurement."""
        return self.exact.calibrated_by()

    def reset(self, module: nn.Module) -> None:
        """Hugging Face gives every module; a part initialises its own."""
        for part in self.parts:
            if any(module is one for one in part.modules()):
                part.reset(module)

    def reset_from_scratch(self) -> None:
        """All parts."""
        for part in self.parts:
            part.reset_from_scratch()


class CompositionPass(WindowPass):
    """The hooks of all parts, one after the other. Rows are inserted by the exact part alone."""

    def __init__(
        self, exact: WindowPass, overflow: OverflowPass | None, sites: list[int], beside: WindowPass | None
    ) -> None:
        self._exact, self._overflow, self._sites, self._beside = exact, overflow, sites, beside
        self._parts = [part for part in (exact, overflow, beside) if part is not None]
        self.wants, self.stretches, self.whole_heads = exact.wants, exact.stretches, exact.whole_heads
        self.unit_layers = {layer for part in self._parts for layer in part.unit_layers}

    @property
    def seen_B(self) -> torch.Tensor | None:  # type: ignore[override]
        """Of the exact part's rows."""
        return self._exact.seen_B

    @property
    def moved_B(self) -> torch.Tensor | None:  # type: ignore[override]
        """By the exact part's rows."""
        return self._exact.moved_B

    @property
    def fused(self) -> bool:
        """Of all parts."""
        return self._exact.fused

    @fused.setter
    def fused(self, fused: bool) -> None:
        for part in self._parts:
            part.fused = fused

    @property
    def rotary(self) -> Rotary | None:
        """Of all parts."""
        return self._exact.rotary

    @rotary.setter
    def rotary(self, rotary: Rotary | None) -> None:
        for part in self._parts:
            part.rotary = rotary

    def before(self) -> torch.Tensor | None:
        """The exact part's."""
        return self._exact.before()

    def behind(self) -> torch.Tensor | None:
        """The exact part's."""
        return self._exact.behind()

    def inserted(self, layer: int) -> torch.Tensor | None:
        """The exact part's."""
        return self._exact.inserted(layer)

    def keys_values(self, layer: int) -> torch.Tensor | None:
        """The exact part's."""
        return self._exact.keys_values(layer)

    def places(self, layer: int) -> torch.Tensor | None:
        """The exact part's."""
        return self._exact.places(layer)

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """One after the other; heads are made once."""
        heads = functools.cache(heads)
        for part in self._parts:
            out_BTC = part.attended(layer, out_BTC, heads)
        return out_BTC

    def branch(self, layer: int, x_BTK: torch.Tensor) -> torch.Tensor | None:
        """Of all parts."""
        return functools.reduce(_plus, (part.branch(layer, x_BTK) for part in self._parts))

    def units(self, layer: int, x_BTK: torch.Tensor, unit_BTF: torch.Tensor) -> torch.Tensor | None:
        """Of all parts."""
        of_parts = [part.units(layer, x_BTK, unit_BTF) for part in self._parts if layer in part.unit_layers]
        return functools.reduce(_plus, of_parts)

    def observe(self, layer: int, output: torch.Tensor) -> None:
        """For the exact part, as it wants it."""
        self._exact.observe(layer, output)

    def rest(self) -> None:
        """Of all parts."""
        for part in self._parts:
            part.rest()

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The states of all parts; the rows that leave the exact one are written into the overflow."""
        state = self._exact.close(overlap, behind_BMK)
        if self._overflow is not None:
            state = *state, *self._overflow.write(self._exact.leaving(self._sites, overlap))
        return state if self._beside is None else (*state, *self._beside.close(overlap, behind_BMK))

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders all parts."""
        for part in self._parts:
            part.reorder(index_B)


def _plus(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
