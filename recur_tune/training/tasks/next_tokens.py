"""Next tokens: every token of a document is predicted from those before it."""

from __future__ import annotations

from recur_tune.corpus.batches import TrainingStream
from recur_tune.corpus.tokens import TokenisedSplit, nonempty, prepare
from recur_tune.model import ReadsInWindows
from recur_tune.spec import TrialConfig
from recur_tune.training.evaluate import evaluate


class NextTokens:
    """Its splits are documents one after another."""

    prepare = staticmethod(prepare)
    evaluate = staticmethod(evaluate)

    def check(self, model: ReadsInWindows, split: TokenisedSplit) -> None:
        """A token is a token."""

    def sample(self, split: TokenisedSplit, tokens: int) -> TokenisedSplit:
        """Of every document its opening, or stretches of a few."""
        return nonempty(split.sample(tokens), f"a sample of {tokens} tokens of the validation split")

    def size(self, split: TokenisedSplit) -> int:
        """All but every document's first."""
        return len(split.tokens) - (len(split.document_starts) - 1)

    def stream(self, config: TrialConfig, split: TokenisedSplit, rank: int, workers: int) -> TrainingStream:
        """Shuffled chains of windows."""
        return TrainingStream(split, config.windowing, config.windows, config.batch, config.seed, rank, workers)
