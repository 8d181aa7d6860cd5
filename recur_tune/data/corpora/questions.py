"""What a corpus of questions is made of, and how one file becomes three splits."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import Corpus, Document, Extent, Split
from recur_tune.data.corpora.text_files import look_at, read_bytes

BLANK = "\N{BLANK SYMBOL}"  # in a question: what is asked for stood here; a tokenizer has a mask token for it

_SPLIT_FILES: dict[Split, tuple[str, ...]] = {
    "train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",),
}  # fmt: skip
_ENDINGS = (".json", ".jsonl")
_TENTHS: dict[Split, range] = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}


@dataclass(frozen=True)
class Question:
    """A question about paragraphs.

    Attributes:
        name: By which it is known in the data set.
        text: What is asked.
        paragraphs: What there is to read.
        answers: Texts of which each is right.
        spans: Where an answer stands: paragraph, first character, and the one behind its last. None for `yes` and `no`.
    """

    name: str
    text: str
    paragraphs: tuple[str, ...]
    answers: tuple[str, ...]
    spans: tuple[tuple[int, int, int], ...] = ()


class QuestionCorpus(Corpus, Protocol):
    """Questions in splits.

    Attributes:
        closed: Answers that are right as a whole or not at all, in the data set's own metric.
    """

    closed: frozenset[str]

    def questions(self, split: Split) -> Iterator[Question]:
        """The questions of a split, in an order that never changes."""
        ...

    def documents(self, split: Split) -> Iterator[Document]:
        """There are none."""
        raise UserError(f"corpus: {self.name} holds questions, and this needs texts; give one such as text:DIR.")


class QuestionFiles(QuestionCorpus):
    """Questions in JSON files: one for each split in a folder, or a single one, of whose questions every ninth in ten
    is for validation and every tenth for testing."""

    def __init__(
        self, where: str, name: str, closed: frozenset[str], parse: Callable[[Any], Iterator[Question]]
    ) -> None:
        self.name, self.closed, self._parse, self._place = name, closed, parse, Path(where).expanduser()
        if not where or not self._place.exists():
            raise UserError(
                f"corpus: {name}:{where} names no file; write {name}:FILE, or {name}:DIR with train.json, "
                "validation.json and test.json in it."
            )

    def look(self, split: Split) -> Extent:
        """At the split's file."""
        return look_at([self._file(split)], f"the {split} split of {self.name}:{self._place}")

    def questions(self, split: Split) -> Iterator[Question]:
        """Those of the split's file, or the split's share of the only one."""
        file = self._file(split)
        found = self._parsed(file)
        if self._place.is_dir():
            return found
        return (question for number, question in enumerate(found) if number % 10 in _TENTHS[split])

    def fingerprint(self, split: Split) -> str:
        """A digest of the file, and which share of it counts."""
        share = "all" if self._place.is_dir() else _TENTHS[split]
        return f"{hashlib.sha256(read_bytes(self._file(split))).hexdigest()} {self.name} {share}"

    def _file(self, split: Split) -> Path:
        if not self._place.is_dir():
            return self._place
        for name in _SPLIT_FILES[split]:
            for ending in _ENDINGS:
                if (file := self._place / f"{name}{ending}").is_file():
                    return file
        raise UserError(f"corpus: {self._place} has no {split} split; it needs a file called {split}.json.")

    def _parsed(self, file: Path) -> Iterator[Question]:
        try:
            yield from self._parse(read_json(file))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            raise UserError(f"corpus: {file} is not in the format of {self.name} ({reason}).") from None


def read_json(file: Path) -> Any:
    """A JSON file, or one of JSON lines as a list."""
    data = read_bytes(file)
    try:
        return json.loads(data)
    except ValueError as whole:
        try:
            return [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError:
            raise UserError(f"corpus: {file} is no JSON ({whole}).") from None


def places_of(answer: str, paragraphs: Sequence[str], among: Iterable[int]) -> list[tuple[int, int, int]]:
    """Where an answer stands in these of the paragraphs: as words of its own or, if it never does, inside others."""
    whole: list[tuple[int, int, int]] = []
    part: list[tuple[int, int, int]] = []
    for number in among:
        text = paragraphs[number]
        for match in re.finditer(re.escape(answer), text):
            around = text[max(0, match.start() - 1) : match.start()] + text[match.end() : match.end() + 1]
            (part if any(map(str.isalnum, around)) else whole).append((number, match.start(), match.end()))
    return whole or part
