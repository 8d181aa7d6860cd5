"""pooled: the recurrence of the paper's section 3.1, and the variants that it mentions.

A window's positions are pooled, a feed-forward network makes M embeddings of the result, and one layer of the next
window, or each, attends to these as keys and values.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.layers import Layer, layer_count, refused_layer
from recur_tune.recurrences.mechanism import Held, Mark, Mechanism, Work

Pooling = Literal["mean", "max", "attention", "recent"]


class PooledSpec(BaseModel):
    """The fields of `pooled`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    l_ins: Layer = Field(2, description="layer that attends to the state, from 1, or 'all'")
    width: PositiveInt = Field(200, description="units in each hidden layer of the recurrence's network")
    depth: NonNegativeInt = Field(3, description="hidden layers of the recurrence's network")
    pooling: Pooling = Field(
        "mean",
        description="how a window's positions become one vector; with 'recent' each embedding is the mean of its own "
        "stretch: the last position, the two before it, the four before those, and so on; the last one takes the rest",
    )
    embeddings: PositiveInt = Field(1, description="embeddings inserted per layer")
    skip: bool = Field(
        False, description="add the network's input to its output: the first states are then outputs of layers"
    )


def _flops(spec: PooledSpec, shape: Shape, windowing: Windowing) -> float:
    """The network, the embeddings' keys and values, and attention of every position to them."""
    look = windowing.size * spec.embeddings * 2 * 2 * shape.heads * shape.head_size
    return _made(spec, shape, windowing) + layer_count(spec.l_ins, shape) * (_keys_values(spec, shape) + look)


def _work(spec: PooledSpec, shape: Shape, windowing: Windowing) -> Work:
    """The square of causal attention grows from T to T + M on both sides; an encoder's on one."""
    beside = windowing.size if shape.bidirectional else windowing.size + spec.embeddings
    grown = beside * (windowing.size + spec.embeddings) - windowing.size**2
    look = grown * 2 * 2 * shape.heads * shape.head_size
    return Work(_made(spec, shape, windowing), layer_count(spec.l_ins, shape) * (_keys_values(spec, shape) + look))


def _made(spec: PooledSpec, shape: Shape, windowing: Windowing) -> float:
    """The network, and pooling where it is by attention."""
    by_stretch = spec.pooling == "recent"  # the network is run for each embedding, and makes one
    outputs = layer_count(spec.l_ins, shape) * (1 if by_stretch else spec.embeddings) * shape.hidden
    sizes = [shape.hidden, *[spec.width] * spec.depth, outputs]
    network = sum(2 * fan_in * fan_out for fan_in, fan_out in pairwise(sizes))
    pooling = 2 * 2 * windowing.size * shape.hidden if spec.pooling == "attention" else 0
    return network * (spec.embeddings if by_stretch else 1) + pooling


def _keys_values(spec: PooledSpec, shape: Shape) -> int:
    """The inserted embeddings' projection at one layer."""
    return spec.embeddings * 2 * 2 * shape.hidden * shape.key_value_heads * shape.head_size


def _state_floats(spec: PooledSpec, shape: Shape) -> int:
    return layer_count(spec.l_ins, shape) * spec.embeddings * shape.hidden


def _held(spec: PooledSpec, shape: Shape, windowing: Windowing) -> Held:
    """The inserted embeddings as keys and values, and the window's positions pooled so far; with 'recent' the last ones
    as they are, since they will have stretches of their own."""
    rows = layer_count(spec.l_ins, shape) * spec.embeddings
    short = min(windowing.size, 2 ** (spec.embeddings - 1) - 1) if spec.pooling == "recent" else 0
    vectors = short + (windowing.size > short)
    weight = 1 if spec.pooling == "attention" else 0
    return Held(rows * 2 * shape.key_value_heads * shape.head_size, single=vectors * shape.hidden + weight)


# The baseline of every search over recurrences: section 5 of the paper, as far as it gives settings.
PAPER = {
    "l_ins": 2, "width": 200, "depth": 3, "pooling": "mean", "embeddings": 1, "skip": False, "recurrence_rate": 1.0,
    "window": 300, "overlap": 0, "bptt_windows": 20,
}  # fmt: skip


def _check(spec: PooledSpec, shape: Shape, base: str) -> str | None:
    if shape.bidirectional and spec.pooling != "mean":
        return f"pooling: {spec.pooling!r} would take in the padding of windows that {base} reads; choose 'mean'."
    return refused_layer("l_ins", spec.l_ins, shape, base)


POOLED = Mechanism(
    name="pooled",
    spec=PooledSpec,
    module="recur_tune.recurrences.pooled.module:Pooled",
    summary="pools a window into a few embeddings, to which layers of the next window attend",
    mark=Mark("pooled", "^", "triangle-up", "#d55e00"),
    first={"paper": PAPER},
    aliases=("memory",),
    flops=_flops,
    work=_work,
    state_floats=_state_floats,
    held=_held,
    leaves_overlap_out=False,
    flops_independent_fields=frozenset({"skip"}),  # an addition
    bidirectional=True,
    state_independent_fields=frozenset({"width", "depth", "skip"}),
    check=_check,
)
