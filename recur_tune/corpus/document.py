"""What a corpus is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Document:
    """One text, and the byte spans in it that are answers to a question (only `recall` marks any)."""

    data: bytes
    answers: tuple[tuple[int, int], ...] = ()


class Corpus(Protocol):
    """Documents in splits."""

    name: str

    def documents(self, split: Split) -> Iterator[Document]:
        """The documents of a split, in an order that never changes."""
        ...

    def fingerprint(self, split: Split) -> str:
        """Changes whenever the documents do; cheaper than reading them where that is possible."""
        ...

    def token_limit(self, split: Split) -> int | None:
        """How many tokens of each document are kept; None keeps all."""
        ...
