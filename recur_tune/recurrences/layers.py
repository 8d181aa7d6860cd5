"""Layers that a mechanism works at: one, counted from 1, or all of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, PositiveInt

from recur_tune.common.shape import Shape

NUMBER = BeforeValidator(lambda value: int(value) if str(value).isdecimal() else value)  # as a flag or a key gives it
Layer = Annotated[PositiveInt | Literal["all"], NUMBER]


def layer_count(layer: int | str, shape: Shape) -> int:
    """How many layers that is."""
    return shape.layers if layer == "all" else 1


def refused_layer(field: str, layer: int | str, shape: Shape, base: str, word: str = "all") -> str | None:
    """One sentence where the base has no such layer; `word` is what may be given in a number's place."""
    if layer == word or int(layer) <= shape.layers:
        return None
    return f"{field}: {layer} is not a layer of {base}; choose one from 1 to {shape.layers}, or {word!r}."
