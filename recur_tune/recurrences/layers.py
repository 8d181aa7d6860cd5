"""The layer field of mechanisms: one layer, counted from 1, or all of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, PositiveInt

from recur_tune.common.shape import Shape

NUMBER = BeforeValidator(lambda value: int(value) if str(value).isdecimal() else value)  # flags and keys are strings
Layer = Annotated[PositiveInt | Literal["all"], NUMBER]


def layer_count(layer: int | str, shape: Shape) -> int:
    """How many layers a field's value is."""
    return shape.layers if layer == "all" else 1


def refused_layer(field: str, layer: int | str, shape: Shape, base: str, word: str = "all") -> str | None:
    """A sentence where the base has no such layer, else None; `word` is the value that is no number."""
    if layer == word or int(layer) <= shape.layers:
        return None
    return f"{field}: {layer} is not a layer of {base}; choose one from 1 to {shape.layers}, or {word!r}."


def interval_count(interval: int, shape: Shape) -> int:
    """How many layers every n-th is; the last one where there are fewer than n."""
    return max(1, shape.layers // interval)
