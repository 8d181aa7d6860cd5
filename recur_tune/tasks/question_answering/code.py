"""Question answering: an answer is a span of a question's paragraphs, or yes or no."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from recur_tune.common.errors import UserError
from recur_tune.common.precision import Precision
from recur_tune.common.windowing import Windowing
from recur_tune.models.encoder import WindowedEncoder
from recur_tune.tasks.question_answering.evaluation import AnswerEvaluation, evaluate_answers
from recur_tune.tasks.question_answering.question_tokens import QuestionSplit, prepare_questions
from recur_tune.tasks.question_answering.question_windows import Layout, QuestionStream
from recur_tune.tasks.seam import GivenState


class QuestionAnswering:
    """Its splits are questions with their paragraphs."""

    prepare = staticmethod(prepare_questions)

    def __init__(self, question_tokens: int, paragraphs: Literal["joined", "whole"], answer_tokens: int) -> None:
        self._question_tokens, self._paragraphs, self._longest = question_tokens, paragraphs, answer_tokens

    def check(self, model: WindowedEncoder, split: QuestionSplit) -> None:
        """Padding has to be the same token for both."""
        if split.marks.padding != (own := model.config.pad_token_id):
            raise UserError(
                f"tokenizer: it fills up with token {split.marks.padding}, and the base with {own}; use the base's own."
            )

    def sample(self, split: QuestionSplit, tokens: int) -> QuestionSplit:
        """Whole questions."""
        return split.sample(tokens)

    def size(self, split: QuestionSplit) -> int:
        """Of all texts."""
        return sum(map(split.token_count, split.chosen))

    def stream(
        self, split: QuestionSplit, windowing: Windowing, windows: int, batch: int, seed: int, rank: int, workers: int
    ) -> QuestionStream:
        """Shuffled questions, each a chain of windows."""
        return QuestionStream(split, self._layout(windowing), windows, batch, seed, rank, workers)

    def evaluate(
        self,
        model: WindowedEncoder,
        split: QuestionSplit,
        windowing: Windowing,
        batch_size: int = 16,
        precision: Precision = "auto",
        progress: Callable[[int], None] = lambda tokens: None,
        given: GivenState = "own",
    ) -> AnswerEvaluation:
        """F1 and exact match."""
        return evaluate_answers(
            model, split, self._layout(windowing), self._longest, batch_size, precision, progress, given
        )

    def _layout(self, windowing: Windowing) -> Layout:
        return Layout(windowing, self._question_tokens, self._paragraphs)
