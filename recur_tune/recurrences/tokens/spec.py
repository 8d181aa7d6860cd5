"""tokens: the recurrence of Recurrent Memory Transformers, and AutoCompressors' ring of several windows' summaries.

Rows behind a window's tokens go through all layers with them; what they become stands before the next window's.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.mechanism import Mark, Mechanism, Work


class TokensSpec(BaseModel):
    """The fields of `tokens`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state_tokens: PositiveInt = Field(10, description="rows that stand behind a window and sum it up for the next")
    ring: PositiveInt = Field(1, description="windows back whose summaries stand before a window")


def _flops(spec: TokensSpec, shape: Shape, windowing: Windowing) -> float:
    """What rows cost in all layers: their products, and attention with its looks at them."""
    read, write, tokens = spec.ring * spec.state_tokens, spec.state_tokens, windowing.size
    looks = shape.pairs(read + tokens + write) - shape.pairs(tokens)
    if shape.bidirectional:  # and yet no row sees those that sum it up
        looks -= (read + tokens) * write
    return shape.layers * (2 * shape.block_products * (read + write) + _look(shape) * looks)


def _work(spec: TokensSpec, shape: Shape, windowing: Windowing) -> Work:
    """Attention is charged as a whole square, which grows with the rows before the window and with those behind it."""
    read, write, tokens = spec.ring * spec.state_tokens, spec.state_tokens, windowing.size

    def of(rows: int, beside: int) -> float:
        looks = (rows + beside) ** 2 - beside**2
        return shape.layers * (2 * shape.block_products * rows + _look(shape) * looks)

    return Work(made=of(write, read + tokens), used=of(read, tokens))


def _look(shape: Shape) -> int:
    """One position's look at another, in one layer."""
    return 2 * 2 * shape.heads * shape.head_size


TOKENS = Mechanism(
    name="tokens",
    spec=TokensSpec,
    module="recur_tune.recurrences.tokens.module:Tokens",
    summary="sums a window up in rows behind its tokens, which then stand before the next one's",
    mark=Mark("tokens", "D", "diamond", "#cc79a7"),
    first={"rmt": {"state_tokens": 10, "ring": 1}},
    flops=_flops,
    work=_work,
    state_floats=lambda spec, shape: spec.ring * spec.state_tokens * shape.hidden,
    from_the_start=True,
    bidirectional=True,
    leaves_overlap_out=False,
    positions=lambda spec, shape: 0 if shape.learned_positions else (spec.ring + 1) * spec.state_tokens,
)
