"""tokens: summary tokens, as in Recurrent Memory Transformers, and AutoCompressors' ring over several windows.

Rows behind a window's tokens go through all layers with them; their outputs stand before the next window's tokens.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.mechanism import Held, Mark, Mechanism, Work


class TokensSpec(BaseModel):
    """The fields of `tokens`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state_tokens: PositiveInt = Field(10, description="summary tokens, appended to every window")
    ring: PositiveInt = Field(1, description="number of earlier windows whose summaries are read before a window")


def _flops(spec: TokensSpec, shape: Shape, windowing: Windowing) -> float:
    """Projections of the rows in all layers, and attention of and to them."""
    read, write, tokens = spec.ring * spec.state_tokens, spec.state_tokens, windowing.size
    looks = shape.pairs(read + tokens + write) - shape.pairs(tokens)
    if shape.bidirectional:  # but no row sees the summary rows
        looks -= (read + tokens) * write
    return shape.layers * (2 * shape.block_products * (read + write) + _look(shape) * looks)


def _work(spec: TokensSpec, shape: Shape, windowing: Windowing) -> Work:
    """Attention's whole square, which grows with the rows before the window and those behind it."""
    read, write, tokens = spec.ring * spec.state_tokens, spec.state_tokens, windowing.size

    def of(rows: int, beside: int) -> float:
        looks = (rows + beside) ** 2 - beside**2
        return shape.layers * (2 * shape.block_products * rows + _look(shape) * looks)

    return Work(made=of(write, read + tokens), used=of(read, tokens))


def _look(shape: Shape) -> int:
    """FLOPs of attention for one pair of positions, in one layer."""
    return 2 * 2 * shape.heads * shape.head_size


def _held(spec: TokensSpec, shape: Shape, windowing: Windowing) -> Held:
    """The summaries, and the keys and values that every layer has of the rows made of them."""
    keys_values = spec.state_tokens * spec.ring * 2 * shape.layers * shape.key_value_heads * shape.head_size
    return Held(as_read=keys_values, single=spec.ring * spec.state_tokens * shape.hidden)


TOKENS = Mechanism(
    name="tokens",
    spec=TokensSpec,
    module="recur_tune.recurrences.tokens.module:Tokens",
    summary="appends summary tokens to a window; what becomes of them is read before the next window's tokens",
    mark=Mark("tokens", "D", "diamond", "#cc79a7"),
    first={"rmt": {"state_tokens": 10, "ring": 1}},
    flops=_flops,
    work=_work,
    state_floats=lambda spec, shape: spec.ring * spec.state_tokens * shape.hidden,
    held=_held,
    from_the_start=True,
    bidirectional=True,
    leaves_overlap_out=False,
    positions=lambda spec, shape: 0 if shape.learned_positions else (spec.ring + 1) * spec.state_tokens,
)
