"""The seam between a task and training: what a loop, a trial and a search ask of it, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from recur_tune.common.precision import Precision
from recur_tune.common.windowing import Windowing
from recur_tune.data.batches import TrainingStream
from recur_tune.data.corpora.document import Split
from recur_tune.models import Windowed

GivenState = Literal["own", "none", "other"]


class Scores(Protocol):
    """What a model makes of a split.

    Attributes:
        remarks: Sentences on what was not read as it is.
    """

    remarks: Sequence[str]

    def metrics(self) -> dict[str, float]:
        """The numbers that people compare; `loss` is among them, and every quality of the task."""

    def report(self) -> dict[str, Any]:
        """Everything, as plain values for JSON."""

    def counts(self) -> dict[str, Any]:
        """How much was scored, for a table."""

    def tables(self) -> dict[str, list[dict[str, str]]]:
        """Further tables for a person, by their titles; a line's first word is its name. Most tasks have none."""


class TaskCode(Protocol):
    """A task's code, made with its fields. Only the task knows what a split of it is."""

    def prepare(
        self,
        corpus: str,
        split: Split,
        tokenizer: Any,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> Any:
        """A split, tokenised now or at any earlier time by transformers' tokenizer, which is None where the task makes
        its own body; `progress` hears how many tokens there are so far."""

    def check(self, model: Windowed, split: Any) -> None:
        """Refuse a model that would take a split's tokens for something else."""

    def sample(self, split: Any, tokens: int) -> Any:
        """About so many tokens of a split, from all over it."""

    def size(self, split: Any) -> int:
        """Tokens of a split that are scored."""

    def stream(
        self, split: Any, windowing: Windowing, windows: int, batch: int, seed: int, rank: int, workers: int
    ) -> TrainingStream[Any]:
        """The steps of a training, or one worker's share of them: `batch` chains of so many windows a step."""

    def evaluate(
        self,
        model: Windowed,
        split: Any,
        windowing: Windowing,
        batch_size: int = 16,
        precision: Precision = "auto",
        progress: Callable[[int], None] = lambda tokens: None,
        given: GivenState = "own",
    ) -> Scores:
        """Score a split, so many chains of windows side by side; `given` is the state that windows get."""
