"""Task: all that the rest of recur-tune knows of what a model is trained for.

Nothing here imports torch: flags, checks and closed-form costs need a task's description, and only training needs the
code behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel

from recur_tune.common.loading import named
from recur_tune.common.shape import Shape, padded
from recur_tune.common.windowing import Windowing

_LONGEST = 2048  # tokens of a teacher's window, unless another is given


class Teacher(NamedTuple):
    """A teacher: the base itself, reading long windows without a state. Half of each window is read again in the next.

    Attributes:
        window: Tokens that it reads at a time; None: the base's positions, at most 2048.
        top: How many of its likeliest tokens are kept for each token of a text.
        weight: Of the divergence from it in the loss.
    """

    window: int | None
    top: int
    weight: float

    def windowing(self, shape: Shape) -> Windowing:
        """Its windows, for a base of this shape."""
        size = self.window or min(shape.context, _LONGEST)
        return Windowing(size, size // 2)

    def refusal(self, shape: Shape, base: str) -> str | None:
        """One sentence where a base cannot be this teacher."""
        if (self.window or 0) > shape.context:
            return f"teacher_window: {self.window} is more than the {shape.context} positions of {base}."
        if self.top >= shape.vocabulary:
            return (
                f"teacher_top: {self.top} is not smaller than the vocabulary of {base}, {shape.vocabulary} tokens; "
                f"choose one from 1 to {shape.vocabulary - 1}."
            )
        return None

    def bytes_per_token(self, shape: Shape) -> int:
        """Bytes on disk for each token of a text: the likeliest tokens' numbers, and the logarithms of their
        probabilities and of the rest's."""
        return self.top * token_bytes(shape.vocabulary) + 2 * (self.top + 1)


def token_bytes(vocabulary: int) -> int:
    """Bytes of a token's number on disk."""
    return 2 if vocabulary <= 2**16 else 4


class Quality(NamedTuple):
    """A number of a validation that a search may minimise.

    Attributes:
        name: In metrics, files and objectives; one name means the same in all tasks.
        title: In tables and on axes.
    """

    name: str
    title: str


@dataclass(frozen=True)
class Task:
    """What is predicted, with which head, and how it is scored. A corpus says which task it is for (`CorpusKind.task`).

    Attributes:
        name: What a corpus's kind and messages call it, in the singular.
        spec: Its fields, a frozen pydantic model; each has a default and a description.
        module: Where its code is (`recur_tune.tasks.seam.TaskCode`), as `package.module:Class`.
        qualities: What a search over its trials may minimise.
        loss_of: What a loss is a mean over.
        bidirectional: Whether its bodies are encoders, which read a window in both directions.
        reserved: Given its fields, positions of every window that are no text of the corpus.
        head: Given a body's shape and a window's positions, the multiply-adds of its head in that window: for a decoder
            `recur_tune.tasks.next_token_head`.
        flops_independent_fields: Fields on which no number of FLOPs depends, and no inference memory.
        memory_fields: Fields on which the memory of a training step depends.
        teacher: Given its fields, the teacher whose predictions training needs; None where it needs none.
        body: Given its fields, a corpus and its windows, the configuration of a body that is made from nothing, as
            transformers would write it; what does not fit together is refused. None: a trial's base is loaded, and
            with it the tokenizer of its texts.
        counts_head: Whether FLOPs per token count what reads and what predicts; the paper's count leaves both out.
        misleading: Given a validation's metrics, those that a person is not shown; JSON and trackers have them.
        picture: Where its scores are drawn, as `package.module:function`; None: nowhere.
    """

    name: str
    spec: type[BaseModel]
    module: str
    qualities: tuple[Quality, ...]
    loss_of: str
    bidirectional: bool
    reserved: Callable[[Any], int]
    head: Callable[[Shape, int], int]
    flops_independent_fields: frozenset[str] = frozenset()
    memory_fields: frozenset[str] = frozenset()
    teacher: Callable[[Any], Teacher | None] = lambda spec: None
    body: Callable[[Any, str, Windowing], dict[str, Any]] | None = None
    counts_head: bool = False
    misleading: Callable[[Mapping[str, float]], Collection[str]] = lambda metrics: ()
    picture: str | None = None

    def refusal(self, shape: Shape, base: str, corpus: str) -> str | None:
        """One sentence where a body cannot do it."""
        if shape.bidirectional == self.bidirectional:
            return None
        reads = "both directions" if shape.bidirectional else "one direction"
        needed = "an encoder, as roberta-base" if self.bidirectional else "a decoder, as gpt2"
        return f"base: {base} reads in {reads}, and {self.name}, which {corpus} is for, needs {needed}."

    def in_words(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """A validation's numbers by their titles, for people."""
        titles, hidden = dict(self.qualities), self.misleading(metrics)
        return {
            titles.get(name, name.replace("_", " ")): f"{value:,.0f}" if 1e5 <= value < 1e15 else f"{value:.5g}"
            for name, value in metrics.items()
            if name not in hidden
        }

    def build(self, spec: BaseModel) -> Any:
        """Its code, with these fields; importing it takes torch's seconds."""
        return named(self.module)(**spec.model_dump())


def next_token_head(shape: Shape, positions: int) -> int:
    """Multiply-adds of a decoder's head: the logits of every position."""
    return positions * shape.hidden * padded(shape.vocabulary)
