"""Question answering: extractive, over windows (the paper's section 5.4).

Every window begins with the question. An answer is a span of the text, or `yes` or `no`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.common.shape import ANSWER_KINDS
from recur_tune.tasks.task import Quality, Task

MARKS = 3  # in every window: one before the question, one behind it, one behind the text


class QuestionAnsweringSpec(BaseModel):
    """The fields of question answering."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question_tokens: PositiveInt = Field(
        48, description="most tokens of a question, which begins every window; longer ones are cut, and counted"
    )
    paragraphs: Literal["joined", "whole"] = Field(
        "joined",
        description="how a question's paragraphs become windows: 'joined' to one text, which is cut into full windows "
        "with the overlap; or 'whole', as many in a window as fit, and only a paragraph that is too long is cut",
    )
    answer_tokens: PositiveInt = Field(30, description="most tokens of an answer")


QUESTION_ANSWERING = Task(
    name="question answering",
    spec=QuestionAnsweringSpec,
    module="recur_tune.tasks.question_answering.code:QuestionAnswering",
    qualities=(Quality("f1_error", "1−F1"), Quality("exact_match_error", "1−EM")),
    loss_of="question",
    bidirectional=True,
    reserved=lambda spec: spec.question_tokens + MARKS,
    # A start and an end at every position, and the kind of the answer once a window.
    head=lambda shape, positions: shape.hidden * (2 * positions + len(ANSWER_KINDS)),
    flops_independent_fields=frozenset({"paragraphs", "answer_tokens"}),
)
