"""CorpusKind: all that the rest of recur-tune knows of a corpus before it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import Corpus


@dataclass(frozen=True)
class CorpusKind:
    """A corpus, or a format of corpora, as `recur-tune data list` shows it.

    Attributes:
        name: What users write; what they write behind a colon (`text:books`) is for `open`.
        summary: One line for `recur-tune data list`.
        needs: What has to be there: `nothing`, `files`, `the Hub or files`.
        open: Given the text behind the colon, or an empty one, the corpus. What is wrong with it is a `UserError`.
        task: The name of the task that it is for.
    """

    name: str
    summary: str
    needs: str
    open: Callable[[str], Corpus]
    task: str = "language modelling"


def without_options(corpus: Corpus) -> Callable[[str], Corpus]:
    """Opens a corpus that has no options: text behind its name is refused."""

    def opened(where: str) -> Corpus:
        if where:
            raise UserError(
                f"corpus: {corpus.name} takes nothing after its name, and has {where!r} there; "
                f"write just {corpus.name}."
            )
        return corpus

    return opened
