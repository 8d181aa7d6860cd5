"""Language modelling: the code of the task, and a base for other tasks of decoders over texts."""

from __future__ import annotations

from typing import Any

from recur_tune.common.windowing import Windowing
from recur_tune.data.tokens import TokenisedSplit, nonempty, prepare
from recur_tune.models import WindowedDecoder
from recur_tune.tasks.language_modelling.evaluation import evaluate
from recur_tune.tasks.language_modelling.spec import TEACHER_WEIGHT
from recur_tune.tasks.language_modelling.windows import TextStream


class LanguageModelling:
    """Its splits are documents one after another; every token of a document but the first is predicted."""

    prepare, evaluate = staticmethod(prepare), staticmethod(evaluate)
    teacher_weight = TEACHER_WEIGHT  # where a task of a package has no such field

    def __init__(self, **fields: Any) -> None:
        """Of its fields the teacher's weight counts here: a split has a teacher's predictions or none."""
        self.teacher_weight = fields.get("teacher_weight", self.teacher_weight)

    def check(self, model: WindowedDecoder, split: TokenisedSplit) -> None:
        """A token is a token."""

    def sample(self, split: TokenisedSplit, tokens: int) -> TokenisedSplit:
        """Of every document its opening, or stretches of a few."""
        return nonempty(split.sample(tokens), f"a sample of {tokens} tokens of the validation split")

    def size(self, split: TokenisedSplit) -> int:
        """All but every document's first."""
        return len(split.tokens) - (len(split.document_starts) - 1)

    def stream(
        self, split: TokenisedSplit, windowing: Windowing, windows: int, batch: int, seed: int, rank: int, workers: int
    ) -> TextStream:
        """Shuffled chains of windows."""
        return TextStream(split, windowing, windows, batch, seed, rank, workers, self.teacher_weight)
