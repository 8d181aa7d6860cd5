"""next tokens: language modelling. Every token of a text is predicted from those before it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from recur_tune.common.shape import padded
from recur_tune.tasks.task import Quality, Task


class NextTokensSpec(BaseModel):
    """It has no fields of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


NEXT_TOKENS = Task(
    name="next tokens",
    corpora=None,
    spec=NextTokensSpec,
    module="recur_tune.tasks.language_modelling.code:NextTokens",
    qualities=(
        Quality("perplexity", "perplexity per word"),
        Quality("token_perplexity", "perplexity per token"),
        Quality("bits_per_byte", "bits per byte"),
        Quality("loss", "nats per token"),
    ),
    loss_of="token",
    bidirectional=False,
    reserved=lambda spec: 0,
    head=lambda shape, positions: positions * shape.hidden * padded(shape.vocabulary),
)
