"""What a corpus is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from recur_tune.common.units import counted, format_size

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Document:
    """One text, and the byte spans in it that are answers to a question (only `recall` marks any)."""

    data: bytes
    answers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Extent:
    """What is seen of a split without reading it."""

    files: int
    bytes: int
    tokens: int | None = None  # where they are known, as a series' rows are

    def __str__(self) -> str:
        return f"{counted(self.files, 'file')} ({format_size(self.bytes)})"


class Corpus(Protocol):
    """Documents in splits; a subclass needs no more than documents and their fingerprint."""

    name: str

    def look(self, split: Split) -> Extent | None:
        """Refuse a split that is not there or has no text, by a glance at its files: nothing is fetched and no text
        is read. None where there are no files to glance at."""
        return None

    def documents(self, split: Split) -> Iterator[Document]:
        """The documents of a split, in an order that never changes."""
        ...

    def fingerprint(self, split: Split) -> str:
        """Changes whenever the documents do; cheaper than reading them where that is possible."""
        ...

    def token_limit(self, split: Split) -> int | None:
        """How many tokens of each document are kept; None keeps all."""
        return None
