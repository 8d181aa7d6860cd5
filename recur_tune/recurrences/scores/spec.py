"""scores: a linear recurrence's weights beside attention's, which depend on distance alone.

RSA of *Encoding Recurrence into Transformers*, over windows: a linear recurrence sums up the past, so a state carries
the sum on.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.mechanism import Mark, Mechanism, Work


class ScoresSpec(BaseModel):
    """The fields of `scores`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    score_heads: PositiveInt = Field(
        4,
        description="heads of each layer that get added weights: with distance, those of a third of them decay, the "
        "others oscillate as a cosine or a sine",
    )
    dilation: PositiveInt = Field(
        1, description="every second of these heads has weights only at distances that are multiples of this; 1: at all"
    )


def _flops(spec: ScoresSpec, shape: Shape, windowing: Windowing) -> float:
    """Weighted sums over the positions before, and over one complex row of the state."""
    taken = windowing.size * ((windowing.size + 1) / 2 + 2)
    return _heads(spec, shape) * (taken + _made(spec, windowing))


def _work(spec: ScoresSpec, shape: Shape, windowing: Windowing) -> Work:
    """Weighted sums over the whole square, and over the whole state."""
    taken = windowing.size * (windowing.size + 2 * spec.dilation)
    return Work(made=_heads(spec, shape) * _made(spec, windowing), used=_heads(spec, shape) * taken)


def _heads(spec: ScoresSpec, shape: Shape) -> int:
    """FLOPs of one weight, in all heads that have such weights."""
    return shape.layers * spec.score_heads * 2 * shape.head_size


def _made(spec: ScoresSpec, windowing: Windowing) -> int:
    """Weights of the next state: for each of its rows, over the rows before and the window's positions."""
    return 2 * spec.dilation * (2 * spec.dilation + windowing.stride)


def _state_floats(spec: ScoresSpec, shape: Shape) -> int:
    return shape.layers * spec.score_heads * 2 * spec.dilation * shape.head_size


def _check(spec: ScoresSpec, shape: Shape, base: str) -> str | None:
    if spec.score_heads <= shape.heads:
        return None
    return f"score_heads: {spec.score_heads} are more than {base} has in a layer; choose from 1 to {shape.heads}."


SCORES = Mechanism(
    name="scores",
    spec=ScoresSpec,
    module="recur_tune.recurrences.scores.module:Scores",
    summary="adds weights that decay or oscillate with distance to the attention of some heads, across windows",
    mark=Mark("scores", "d", "diamond-tall", "#882255"),
    first={"rsa": {"score_heads": 4, "dilation": 1, "recurrence_rate": 10.0}},
    flops=_flops,
    work=_work,
    state_floats=_state_floats,
    from_the_start=True,
    check=_check,
)
