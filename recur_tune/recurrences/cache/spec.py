"""cache: a key-value cache over windows, as in Transformer-XL and Memorizing Transformers.

Layers keep their last keys and values, and the next window attends to them. No gradient goes back.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.cache.row_size import AS_READ, row_columns
from recur_tune.recurrences.gated_delta.spec import GATED_DELTA
from recur_tune.recurrences.layers import NUMBER, Layer, layer_count, refused_layer
from recur_tune.recurrences.mechanism import Held, Mark, Mechanism, Work
from recur_tune.recurrences.scores.spec import SCORES
from recur_tune.recurrences.second_parts import FLOPS_INDEPENDENT, NO_PART, STATE_INDEPENDENT, SecondParts


class _CacheFields(BaseModel):
    """Those of the cache alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cache_rows: PositiveInt = Field(
        128,
        description="cached positions of a layer: keys and values of tokens before the window, from several windows if "
        "need be. With cache_join 'softmax', they and a window must fit into the base's positions",
    )
    cache_layer: Layer = Field("all", description="layer that has a cache, from 1, or 'all'")
    cache_join: Literal["softmax", "gate"] = Field(
        "softmax",
        description="how a layer attends to its cache: in one 'softmax' with the window, as if windows were longer; or "
        "in an attention of its own, which a learned 'gate' for each head, closed at first, mixes with the window's",
    )
    cache_keep: Literal["recent", "keydiff", "tova", "h2o"] = Field(
        "recent",
        description="which positions stay in the cache beside a document's first and the latest half: the most recent "
        "('recent'), those whose keys differ most from the mean key ('keydiff'), or those that get most attention from "
        "the window's last query ('tova') or from all its queries ('h2o')",
    )
    cache_sinks: NonNegativeInt = Field(
        4, description="how many cached positions are a document's first ones (attention sinks)"
    )
    cache_bits: Annotated[Literal[16, 8, 4], NUMBER] = Field(
        AS_READ,
        description="bits of a number of a cached position: 16 keeps it as it was read; 8 and 4 quantise it, so that "
        "the same memory holds about twice and three times as many positions",
    )


class CacheSpec(SecondParts, _CacheFields):
    """The fields of `cache`: its own, of what takes the rows that leave it, and of what stands beside it."""

    @model_validator(mode="after")
    def _leaves_rows_everywhere(self) -> CacheSpec:
        if self.overflow != NO_PART and self.cache_layer != "all":
            raise ValueError(
                f"cache_layer: {self.cache_layer} is one layer, and {self.overflow!r} takes the rows of all; choose "
                f"'all', or overflow {NO_PART!r}."
            )
        return self


def _flops(spec: CacheSpec, shape: Shape, windowing: Windowing) -> float:
    """Attention of every position to all rows, and the choice of rows."""
    pairs = windowing.size * spec.cache_rows
    chosen = _choice(spec, shape, windowing, pairs + shape.pairs(windowing.size))
    return layer_count(spec.cache_layer, shape) * (_looks(shape, pairs) + chosen)


def _work(spec: CacheSpec, shape: Shape, windowing: Windowing) -> Work:
    """In one softmax the attention's square grows from T to T + M on both sides."""
    pairs, layers = windowing.size * spec.cache_rows, layer_count(spec.cache_layer, shape)
    chosen = _choice(spec, shape, windowing, windowing.size * (windowing.size + spec.cache_rows))
    if spec.cache_join == "softmax":
        pairs = (windowing.size + spec.cache_rows) ** 2 - windowing.size**2
    return Work(made=layers * chosen, used=layers * _looks(shape, pairs))


def _choice(spec: CacheSpec, shape: Shape, windowing: Windowing, pairs: float) -> float:
    """FLOPs of a layer's choice of rows; `pairs` are those of a query and a key for all of a window's queries."""
    match spec.cache_keep:
        case "keydiff":  # each key that can stay with the mean
            return 2 * shape.key_value_heads * shape.head_size * (spec.cache_rows + windowing.size - windowing.overlap)
        case "tova":  # the last query with each key
            return 2 * shape.heads * shape.head_size * (spec.cache_rows + windowing.size)
        case "h2o":
            return 2 * shape.heads * shape.head_size * pairs
    return 0


def _looks(shape: Shape, pairs: int) -> int:
    """FLOPs of attention over so many pairs of a query and a row."""
    return pairs * 2 * 2 * shape.heads * shape.head_size


def _state_floats(spec: CacheSpec, shape: Shape) -> int:
    """Keys and values, unless they are quantised, and how many rows there are."""
    return 1 + (_columns(spec, shape) if spec.cache_bits == AS_READ else 0)


def _quantised_bytes(spec: CacheSpec, shape: Shape) -> int:
    return 0 if spec.cache_bits == AS_READ else _columns(spec, shape)


def _columns(spec: CacheSpec, shape: Shape) -> int:
    """Of all rows of all layers: numbers, or bytes where they are quantised."""
    columns = row_columns(shape.head_size, shape.key_value_heads, spec.cache_bits)
    return layer_count(spec.cache_layer, shape) * spec.cache_rows * columns


def _held(spec: CacheSpec, shape: Shape, windowing: Windowing) -> Held:
    """The rows, and how many are filled: as it is carried, and as an index of eight bytes. Where attention decides, the
    last query ('tova'), or what every row and every position received ('h2o')."""
    layers, single = layer_count(spec.cache_layer, shape), 1 + 2
    as_read = _state_floats(spec, shape) - 1
    match spec.cache_keep:
        case "tova":
            as_read += layers * shape.heads * shape.head_size
        case "h2o":
            single += layers * shape.key_value_heads * (spec.cache_rows + windowing.size)
    return Held(as_read, single, _quantised_bytes(spec, shape))


def _refused(spec: CacheSpec, shape: Shape, base: str) -> str | None:
    if spec.cache_bits == 4 and shape.head_size % 2:
        return (
            f"cache_bits: 4 packs two numbers into a byte, and heads of {base} have {shape.head_size}; choose 8 or 16."
        )
    return refused_layer("cache_layer", spec.cache_layer, shape, base)


_ROWS = {"cache_rows": 128, "cache_layer": "all", "cache_bits": AS_READ}
_SOFTMAX = {**_ROWS, "cache_join": "softmax"}

CACHE = Mechanism(
    name="cache",
    spec=CacheSpec,
    module="recur_tune.recurrences.cache.module:Cached",
    summary="keeps keys and values of earlier windows, to which layers attend",
    mark=Mark("cache", "s", "square", "#009e73"),
    first={
        "transformer-xl": {**_SOFTMAX, "beside": NO_PART},
        "rsa-xl": {**_SOFTMAX, "overflow": NO_PART, "beside": SCORES.name, "recurrence_rate": 10.0},
        "overflow": {**_SOFTMAX, "overflow": GATED_DELTA.name, "beside": NO_PART, "recurrence_rate": 10.0},
        "memorizing": {**_ROWS, "cache_join": "gate", "beside": NO_PART},
    },
    flops=_flops,
    work=_work,
    state_floats=_state_floats,
    quantised_bytes=_quantised_bytes,
    held=_held,
    stops_gradients=True,
    flops_independent_fields=FLOPS_INDEPENDENT | {"cache_sinks", "cache_bits"},  # which rows there are, and how kept
    state_independent_fields=STATE_INDEPENDENT | {"cache_join", "cache_sinks"},
    kept_as_read=True,
    positions=lambda spec, shape: spec.cache_rows if spec.cache_join == "softmax" else 0,
    check=_refused,
)
