"""fast_weights: linear attention over windows, with an associative memory per key-value head.

It is written at a window's end and read in the next: by Infini-attention's two rules, or by a gated delta rule.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.layers import Layer, layer_count, refused_layer
from recur_tune.recurrences.mechanism import Mark, Mechanism, Work


class FastWeightsSpec(BaseModel):
    """The fields of `fast_weights`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    write_rule: Literal["linear", "delta", "gated"] = Field(
        "delta",
        description="how a window updates the matrix: 'linear' adds its values; 'delta' adds their difference from "
        "what their keys already read there; 'gated' does that with a learned decay",
    )
    fast_layers: Layer = Field("all", description="layer that has such matrices, from 1, or 'all'")


def _work(spec: FastWeightsSpec, shape: Shape, windowing: Windowing) -> Work:
    """Products of queries or keys with a head's matrix, and with the sum of keys that is the divisor."""
    sites = layer_count(spec.fast_layers, shape)
    written = 2 * shape.key_value_heads * shape.head_size**2
    found = 2 * shape.head_size * (shape.head_size + _sums(spec))
    return Work(
        made=sites * windowing.stride * written,
        used=sites * windowing.size * shape.heads * found,
        carried=0 if spec.write_rule == "linear" else sites * windowing.stride * shape.key_value_heads * found,
    )


def _flops(spec: FastWeightsSpec, shape: Shape, windowing: Windowing) -> float:
    return sum(_work(spec, shape, windowing))


def _state_floats(spec: FastWeightsSpec, shape: Shape) -> int:
    sites = layer_count(spec.fast_layers, shape)
    return sites * shape.key_value_heads * shape.head_size * (shape.head_size + _sums(spec))


def _sums(spec: FastWeightsSpec) -> int:
    """Columns beside the matrix: the sum of keys for the divisor; 'gated' has none."""
    return 0 if spec.write_rule == "gated" else 1


FAST_WEIGHTS = Mechanism(
    name="fast_weights",
    spec=FastWeightsSpec,
    module="recur_tune.recurrences.fast_weights.module:FastWeights",
    summary="updates a matrix per head with a window's keys and values, which queries of later windows read",
    mark=Mark("fast weights", "h", "hexagon", "#332288"),
    # Gates start closed, and open only at a learning rate many times the base's.
    first={"infini": {"write_rule": "delta", "fast_layers": "all", "recurrence_rate": 10.0}},
    flops=_flops,
    work=_work,
    state_floats=_state_floats,
    check=lambda spec, shape, base: refused_layer("fast_layers", spec.fast_layers, shape, base),
)
