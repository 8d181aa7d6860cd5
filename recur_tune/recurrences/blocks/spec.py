"""blocks: the Block-Recurrent Transformer (Hutchins et al. 2022).

One layer keeps a set of state vectors. Its positions attend to them, they attend to each other and to the window's
positions, and a gate decides what of that goes on to the next window.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.layers import NUMBER, refused_layer
from recur_tune.recurrences.mechanism import Held, Mark, Mechanism, Work


class BlocksSpec(BaseModel):
    """The fields of `blocks`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state_vectors: PositiveInt = Field(64, description="number of vectors that pass from window to window")
    block_layer: Annotated[PositiveInt | Literal["upper"], NUMBER] = Field(
        "upper",
        description="layer that has the state vectors, from 1; 'upper' is the third from the top, or the first if "
        "there are fewer",
    )
    block_gate: Literal["fixed", "lstm"] = Field(
        "fixed",
        description="how new state vectors replace the old ones: 'fixed' mixes them by a learned share for each "
        "number; 'lstm' has an LSTM's input and forget gates, which see what was attended to",
    )


def _flops(spec: BlocksSpec, shape: Shape, windowing: Windowing) -> float:
    """Attention here is not causal: every position sees every vector, and every vector every position."""
    return sum(_work(spec, shape, windowing))


def _work(spec: BlocksSpec, shape: Shape, windowing: Windowing) -> Work:
    """Projections, and attention: two products of vectors for every pair."""
    vectors, hidden, columns = spec.state_vectors, shape.hidden, shape.heads * shape.head_size
    weight, pair = 2 * hidden * columns, 2 * 2 * columns
    of_a_position = 2 * weight + vectors * pair  # its query, output and attention
    used = windowing.size * of_a_position + vectors * 2 * weight  # the vectors' keys and values
    gates = 3 if spec.block_gate == "lstm" else 1
    of_a_vector = 2 * weight + gates * 2 * weight + (vectors + windowing.stride) * pair  # two queries and their outputs
    made = vectors * of_a_vector + windowing.stride * 2 * weight  # the positions' keys and values
    return Work(made, used)


def _state_floats(spec: BlocksSpec, shape: Shape) -> int:
    return spec.state_vectors * shape.hidden


def _held(spec: BlocksSpec, shape: Shape, windowing: Windowing) -> Held:
    """The vectors, their keys and values, and the window's positions, which the vectors attend to at its end."""
    keys_values = spec.state_vectors * 2 * shape.heads * shape.head_size
    return Held(as_read=keys_values, single=_state_floats(spec, shape) + windowing.size * shape.hidden)


BLOCKS = Mechanism(
    name="blocks",
    spec=BlocksSpec,
    module="recur_tune.recurrences.blocks.module:Blocks",
    summary="keeps state vectors at one layer, updated by attention to each window and a gate",
    mark=Mark("blocks", "X", "x", "#000000"),
    first={"blocks": {"state_vectors": 64, "block_layer": "upper", "block_gate": "fixed"}},
    flops=_flops,
    work=_work,
    state_floats=_state_floats,
    held=_held,
    from_the_start=True,
    flops_independent_fields=frozenset({"block_layer"}),
    state_independent_fields=frozenset({"block_layer", "block_gate"}),
    check=lambda spec, shape, base: refused_layer("block_layer", spec.block_layer, shape, base, "upper"),
)
