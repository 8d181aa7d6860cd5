"""Composition of an exact part and a compressed one: rows that leave the first are written into the second.

Both see every window. The state is both states side by side, and gradients stop only where both parts stop them.
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
    """A recurrence of these parts, each with those of the fields that are its own."""
    parts = [module(shape, **_own(module, fields)) for module in modules]
    if len(parts) == 1:
        return parts[0]
    exact, overflow = parts
    assert isinstance(overflow, Overflow), "the second part takes rows"
    return Composition(exact, overflow)


def _own(module: type[Recurrence], fields: Mapping[str, Any]) -> dict[str, Any]:
    names = inspect.signature(module).parameters
    return {name: value for name, value in fields.items() if name in names}


class Composition(Recurrence):
    """An exact part, and an overflow that takes the rows which leave it."""

    def __init__(self, exact: Recurrence, overflow: Overflow) -> None:
        super().__init__(exact.shape)
        self.exact, self.overflow = exact, overflow
        self.stops_gradients = exact.stops_gradients and overflow.stops_gradients

    def empty(self, batch_size: int) -> State:
        """Those of both parts."""
        return *self.exact.empty(batch_size), *self.overflow.empty(batch_size)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> CompositionPass:
        """Both parts begin the window."""
        of_exact = of_overflow = None
        if state is not None:
            tensors = len(self.exact.empty(0))
            of_exact, of_overflow = state[:tensors], state[tensors:]
        behind = self.overflow.open(of_overflow, fresh_B, in_parts)
        behind.takes_own = False
        return CompositionPass(self.exact.open(of_exact, fresh_B, in_parts), behind, self.overflow.sites)

    def calibrated_by(self) -> CalibrationPass | None:
        """The exact part's measurement."""
        return self.exact.calibrated_by()

    def reset(self, module: nn.Module) -> None:
        """Hugging Face gives every module; a part initialises its own."""
        for part in (self.exact, self.overflow):
            if any(module is one for one in part.modules()):
                part.reset(module)


class CompositionPass(WindowPass):
    """The hooks of both parts. Rows are inserted by the exact part alone."""

    def __init__(self, exact: WindowPass, overflow: OverflowPass, sites: list[int]) -> None:
        self._exact, self._overflow, self._sites = exact, overflow, sites
        self._parts = exact, overflow
        self.wants, self.stretches, self.whole_heads = exact.wants, exact.stretches, exact.whole_heads
        self.unit_layers = {*exact.unit_layers, *overflow.unit_layers}

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
        """Of both parts."""
        return self._exact.fused

    @fused.setter
    def fused(self, fused: bool) -> None:
        self._exact.fused = self._overflow.fused = fused

    @property
    def rotary(self) -> Rotary | None:
        """Of both parts."""
        return self._exact.rotary

    @rotary.setter
    def rotary(self, rotary: Rotary | None) -> None:
        self._exact.rotary = self._overflow.rotary = rotary

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
        return self._overflow.attended(layer, self._exact.attended(layer, out_BTC, heads), heads)

    def branch(self, layer: int, x_BTK: torch.Tensor) -> torch.Tensor | None:
        """Of both parts."""
        return functools.reduce(_plus, (part.branch(layer, x_BTK) for part in self._parts))

    def units(self, layer: int, x_BTK: torch.Tensor, unit_BTF: torch.Tensor) -> torch.Tensor | None:
        """Of both parts."""
        of_parts = [part.units(layer, x_BTK, unit_BTF) for part in self._parts if layer in part.unit_layers]
        return functools.reduce(_plus, of_parts)

    def observe(self, layer: int, output: torch.Tensor) -> None:
        """For the exact part, as it wants it."""
        self._exact.observe(layer, output)

    def rest(self) -> None:
        """Of both parts."""
        for part in self._parts:
            part.rest()

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """Write the rows that leave the exact part."""
        kept = self._exact.close(overlap, behind_BMK)
        return *kept, *self._overflow.write(self._exact.leaving(self._sites, overlap))

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders both parts."""
        for part in self._parts:
            part.reorder(index_B)


def _plus(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
