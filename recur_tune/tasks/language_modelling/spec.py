"""Language modelling: every token of a text is predicted from those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.tasks.task import Quality, Task, Teacher, next_token_head

TEACHER_WEIGHT = 0.5  # by default


class LanguageModellingSpec(BaseModel):
    """Its fields: what training minimises. Validation is the cross-entropy of next tokens in any case."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss: Literal["next_token", "distill"] = Field(
        "next_token",
        description="what training minimises: the cross-entropy of the 'next_token', or 'distill': the divergence from "
        "the base itself reading long windows, mixed with it",
    )
    teacher_window: PositiveInt | None = Field(
        None,
        description="tokens that the teacher of 'distill' reads at a time, half of them again in its next window; "
        "default: the base's positions, at most 2048",
    )
    teacher_weight: float = Field(
        TEACHER_WEIGHT,
        gt=0,
        le=1,
        description="weight of the divergence from the teacher; the rest is the next token's",
    )
    teacher_top: PositiveInt = Field(
        32, description="likeliest tokens of the teacher that are kept for each token of the training text"
    )


def _teacher(spec: LanguageModellingSpec) -> Teacher | None:
    if spec.loss == "next_token":
        return None
    return Teacher(spec.teacher_window, spec.teacher_top, spec.teacher_weight)


def _misleading(metrics: Mapping[str, float]) -> tuple[str, ...]:
    """Perplexity per word where every token is a byte: a word is some six of them, so a fair model has millions. Then
    the loss in bits is the bits per byte."""
    bits, of_bytes = metrics.get("loss", math.nan) / math.log(2), metrics.get("bits_per_byte", math.nan)
    is_bytes = math.isclose(bits, of_bytes, rel_tol=1e-6)
    return ("perplexity",) if is_bytes else ()


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
    flops_independent_fields=frozenset(LanguageModellingSpec.model_fields),
    memory_fields=frozenset({"loss", "teacher_top"}),
    teacher=_teacher,
    misleading=_misleading,
)
