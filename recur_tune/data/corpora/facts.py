"""`facts`: questions whose answer needs a fact from `lag` paragraphs before.

The first paragraph says a number. The last one has a list of names in an order that says nothing; each number always
stands for the same name, which only training tells. So the paragraph with the names does not tell which is asked for,
and the one with the number has no name in it: a model without a state can only guess (chance: one in `values`). Every
paragraph has exactly `words` words, so that with words for tokens a window can have the room of one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from recur_tune.data.corpora.document import SPLITS, Split
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.numbers import check_number, read_numbers
from recur_tune.data.corpora.questions import Question, QuestionCorpus

NAMES = ("Ada", "Ben", "Cleo", "Dora", "Emil", "Finn", "Gwen", "Hugo", "Iris", "Jack", "Kate", "Liam")
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
FILLER = ("rain", "falls", "on", "the", "old", "town", "while", "bells", "ring", "far", "off")
ASKED = ("who", "has", "it")
_SIZE = {"train": 4096, "validation": 128, "test": 256}


@dataclass(frozen=True)
class FactsCorpus(QuestionCorpus):
    """`facts:lag=1,values=4,words=8`: any of the fields below, each with a default."""

    lag: int = 1
    values: int = 4
    words: int = 8

    name = "facts"
    closed = frozenset[str]()

    def __post_init__(self) -> None:
        for field, lowest, highest in (
            ("lag", 1, 100), ("values", 2, len(NAMES)), ("words", max(2, self.values), 4096),
        ):  # fmt: skip
            check_number(self.name, field, getattr(self, field), lowest, highest)

    @classmethod
    def parse(cls, options: str) -> FactsCorpus:
        """From the text after `facts:`."""
        return cls(**read_numbers(options, [field.name for field in fields(cls)], cls.name, "facts:lag=2,values=8"))

    def questions(self, split: Split) -> Iterator[Question]:
        """Questions drawn from a seed of the split's own."""
        random = np.random.default_rng([SPLITS.index(split), self.lag, self.values, self.words])
        for number in range(_SIZE[split]):
            value = int(random.integers(self.values))
            names = [NAMES[at] for at in random.permutation(self.values)]
            paragraphs = [self._filled([NUMBERS[value]]), *[self._filled([])] * (self.lag - 1), self._filled(names)]
            begin = paragraphs[-1].index(NAMES[value])
            span = (self.lag, begin, begin + len(NAMES[value]))
            yield Question(f"{split} {number}", " ".join(ASKED), tuple(paragraphs), (NAMES[value],), (span,))

    def fingerprint(self, split: Split) -> str:
        """The questions are a function of the fields alone."""
        return hashlib.sha256(f"{self!r} {NAMES} {NUMBERS} {FILLER} {_SIZE[split]} 1".encode()).hexdigest()

    def _filled(self, words: list[str]) -> str:
        filler = (FILLER * (self.words // len(FILLER) + 1))[: self.words - len(words)]
        return " ".join([*filler, *words])


FACTS = CorpusKind(
    name="facts",
    summary="synthetic questions, whose answer needs a fact from LAG paragraphs before (facts:lag=1)",
    needs="nothing",
    open=FactsCorpus.parse,
    task="question answering",
)
