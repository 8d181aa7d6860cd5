"""gated_delta: Gated DeltaNet's fast weights, written token by token, beside attention.

Alone it takes every position when its window ends. As an overflow it takes the rows that leave a cache.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.gated_delta.chunks import chunks
from recur_tune.recurrences.layers import interval_count
from recur_tune.recurrences.mechanism import Mark, Mechanism, Work


class GatedDeltaSpec(BaseModel):
    """The fields of `gated_delta`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delta_every: PositiveInt = Field(
        1,
        description="every n-th layer has such fast weights, the last one where there are fewer; 2 holds half of "
        "what 1 does",
    )


def _work(spec: GatedDeltaSpec, shape: Shape, windowing: Windowing) -> Work:
    """Reading: a query with the matrix, its answer's output projection, its gate. Writing, of a chunk: keys with each
    other, the corrections, what the matrix answers to keys, and what keys add to it; gates of positions."""
    sites, size, heads = interval_count(spec.delta_every, shape), shape.head_size, shape.key_value_heads
    (count, chunk), queries = chunks(windowing.stride), shape.heads * size
    answers = 2 * chunk * size**2
    written = count * (2 * 2 * chunk**2 * size + 2 * answers) - answers
    return Work(
        made=sites * heads * (written + windowing.stride * 2 * 2 * 2 * size),
        used=sites * windowing.size * 2 * queries * (2 * size + shape.heads),
        carried=sites * heads * answers,  # of the first chunk; a document's first window begins with nothing
    )


def _state_floats(spec: GatedDeltaSpec, shape: Shape) -> int:
    return interval_count(spec.delta_every, shape) * shape.key_value_heads * shape.head_size**2


GATED_DELTA = Mechanism(
    name="gated_delta",
    spec=GatedDeltaSpec,
    module="recur_tune.recurrences.gated_delta.module:GatedDelta",
    summary="writes keys and values into a matrix per head by the gated delta rule, one token after the other",
    mark=Mark("gated delta", "<", "triangle-left", "#aa4499"),
    first={"gated-delta": {"delta_every": 1, "recurrence_rate": 10.0}},
    flops=lambda spec, shape, windowing: sum(_work(spec, shape, windowing)),
    work=_work,
    state_floats=_state_floats,
    backward_of_making=1.0,  # keys and values have no gradient
    kept_as_read=True,
)
