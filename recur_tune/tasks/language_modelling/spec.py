"""Language modelling: every token of a text is predicted from those before it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from recur_tune.tasks.task import Quality, Task, next_token_head


class LanguageModellingSpec(BaseModel):
    """It has no fields of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


LANGUAGE_MODELLING = Task(
    name="language modelling",
    spec=LanguageModellingSpec,
    module="recur_tune.tasks.language_modelling.code:LanguageModelling",
    qualities=(
        Quality("perplexity", "perplexity per word"),
        Quality("token_perplexity", "perplexity per token"),
        Quality("bits_per_byte", "bits per byte"),
        Quality("loss", "nats per token"),
    ),
    loss_of="token",
    bidirectional=False,
    reserved=lambda spec: 0,
    head=next_token_head,
)
