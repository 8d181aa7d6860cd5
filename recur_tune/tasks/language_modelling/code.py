"""Next tokens: every token of a document is predicted from those before it."""

from __future__ import annotations

from recur_tune.data.batches import TrainingStream
from recur_tune.data.tokens import TokenisedSplit, nonempty, prepare
from recur_tune.models import WindowedDecoder
from recur_tune.tasks.language_modelling.evaluation import evaluate


class NextTokens:
    """Its splits are documents one after another."""

    prepare = staticmethod(prepare)
    evaluate = staticmethod(evaluate)

    def check(self, model: WindowedDecoder, split: TokenisedSplit) -> None:
        """A token is a token."""

    def sample(self, split: TokenisedSplit, tokens: int) -> TokenisedSplit:
        """Of every document its opening, or stretches of a few."""
        return nonempty(split.sample(tokens), f"a sample of {tokens} tokens of the validation split")

    def size(self, split: TokenisedSplit) -> int:
        """All but every document's first."""
        return len(split.tokens) - (len(split.document_starts) - 1)

    stream = staticmethod(TrainingStream)  # shuffled chains of windows
