"""`recall`: a fact stated in one window is asked for `lag` windows later.

Every line is exactly `line` bytes, so that a window of `line` byte-tokens without overlap is one line. A
document repeats: a line that states a value, `lag - 1` lines of filler, a line that asks for it. Within one
line nothing tells the value, so a model without a state can only guess (chance: one in `values`), and a
model with one has to carry it across the filler. Training questions come after 1 to `lag` lines, so that the
near ones teach what the far ones need; validation and test questions all come after `lag`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from recur_tune.data.corpora.document import SPLITS, Corpus, Document, Split
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.numbers import check_number, read_numbers

_FILLER = b"rain falls on the old town and the river runs slow under stone bridges while bells ring far off "
_VALUES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SIZE = {"train": 4096, "validation": 128, "test": 128}


@dataclass(frozen=True)
class RecallCorpus(Corpus):
    """`recall:lag=3,line=16,values=8,facts=2`: any of the fields below, each with a default."""

    lag: int = 2
    line: int = 16
    values: int = 8
    facts: int = 2

    name = "recall"

    def __post_init__(self) -> None:
        shortest = len(_asked(0)) + 1
        for field, lowest, highest in (
            ("lag", 1, 1000), ("line", shortest, 4096), ("values", 2, len(_VALUES)), ("facts", 1, 1000),
        ):  # fmt: skip
            check_number(self.name, field, getattr(self, field), lowest, highest)

    @classmethod
    def parse(cls, options: str) -> RecallCorpus:
        """From the text after `recall:`."""
        return cls(**read_numbers(options, [field.name for field in fields(cls)], cls.name, "recall:lag=3,values=16"))

    def documents(self, split: Split) -> Iterator[Document]:
        """Documents drawn from a seed of the split's own, with every answer's place marked."""
        random = np.random.default_rng([SPLITS.index(split), self.lag, self.line, self.values, self.facts])
        for _ in range(_SIZE[split]):
            yield self._document(random, nearest=1 if split == "train" else self.lag)

    def fingerprint(self, split: Split) -> str:
        """The documents are a function of the fields alone."""
        return hashlib.sha256(f"{self!r} {_FILLER!r} {_SIZE[split]} 3".encode()).hexdigest()

    def _document(self, random: np.random.Generator, nearest: int) -> Document:
        data, answers = bytearray(), []
        for _ in range(self.facts):
            value = int(random.integers(self.values))
            lag = int(random.integers(nearest, self.lag + 1))
            lines = [_stated(value), *[b""] * (lag - 1), _asked(value)]
            for line in lines:
                # Filler first, text last: the answer is the line's last byte but one, whatever the line's length.
                data += (_FILLER * (self.line // len(_FILLER) + 1))[: self.line - len(line) - 1] + line + b"\n"
            answers.append((len(data) - 2, len(data) - 1))
        return Document(bytes(data), tuple(answers))


def _stated(value: int) -> bytes:
    return b" it is " + _VALUES[value : value + 1]


def _asked(value: int) -> bytes:
    return b" it was " + _VALUES[value : value + 1]


RECALL = CorpusKind(
    name="recall",
    summary="synthetic: a fact stated in one window is asked for LAG windows later (recall:lag=2)",
    needs="nothing",
    open=RecallCorpus.parse,
)
