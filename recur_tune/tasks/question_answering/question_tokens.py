"""Questions to tokens, once: memory-mapped arrays in a cache that is named by content, as for texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder, whole_folder
from recur_tune.common.made_once import made_once
from recur_tune.data import tokenizers
from recur_tune.data.corpora.document import Document, Split
from recur_tune.data.corpora.questions import BLANK, Question, QuestionCorpus
from recur_tune.data.corpora.registry import open_corpus

_FORMAT = 1
_ARRAYS = ("tokens", "begins", "ends", "paragraph_starts", "first_paragraphs", "asked", "asked_starts", "spans", "text")


class Marks(NamedTuple):
    """The tokens that a window has beside the question and the text."""

    first: int  # [CLS]
    behind: int  # [SEP], of the question and of the text
    padding: int


@dataclass(frozen=True)
class QuestionSplit:
    """A split as arrays, question after question.

    Attributes:
        tokens: Of all paragraphs.
        begins: Where each of these begins in `text`, in bytes; spaces before it may be part of it.
        ends: And where it ends.
        paragraph_starts: The first token of each paragraph, and the total last.
        first_paragraphs: The first paragraph of each question, and the total last.
        asked: Tokens of the questions themselves.
        asked_starts: The first of these of each question, and the total last.
        spans: By question, first and last token: where an answer stands.
        text: Of all paragraphs, in UTF-8.
        answers: Of each question, the texts that are right.
        names: Of each question.
        unusable: How many others have no answer, or no text to read.
        closed: Answers that are right as a whole or not at all.
        marks: What stands beside questions and text in a window.
        chosen: Which of the questions count here.
    """

    tokens: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    paragraph_starts: np.ndarray
    first_paragraphs: np.ndarray
    asked: np.ndarray
    asked_starts: np.ndarray
    spans: np.ndarray
    text: np.ndarray
    answers: list[list[str]]
    names: list[str]
    unusable: int
    closed: frozenset[str]
    marks: Marks
    chosen: np.ndarray

    def paragraphs_of(self, question: int) -> list[tuple[int, int]]:
        """Each as tokens [begin, end)."""
        begin, end = self.first_paragraphs[question], self.first_paragraphs[question + 1]
        starts = self.paragraph_starts[begin : end + 1].tolist()
        return list(pairwise(starts))

    def spans_of(self, question: int) -> np.ndarray:
        """First and last token of every place where its answer stands."""
        begin, end = np.searchsorted(self.spans[:, 0], [question, question + 1])
        return self.spans[begin:end, 1:]

    def asked_of(self, question: int) -> np.ndarray:
        """What is asked."""
        return self.asked[self.asked_starts[question] : self.asked_starts[question + 1]]

    def text_between(self, first: int, last: int) -> str:
        """The text from one token to another, without the space around it."""
        return bytes(self.text[self.begins[first] : self.ends[last]]).decode("utf-8", errors="replace").strip()

    def token_count(self, question: int) -> int:
        """Of its paragraphs."""
        begin, end = self.paragraph_starts[self.first_paragraphs[[question, question + 1]]]
        return int(end - begin)

    def sample(self, limit: int) -> QuestionSplit:
        """Questions from all over the split with about `limit` tokens of text together, and one at least."""
        total = sum(map(self.token_count, self.chosen))
        count = max(1, min(len(self.chosen), len(self.chosen) * limit // max(1, total)))
        return replace(self, chosen=self.chosen[np.linspace(0, len(self.chosen) - 1, count).round().astype(np.int64)])

    def summary(self) -> dict[str, int]:
        """What `recur-tune data prepare` prints."""
        words = bytes(self.text).split()
        return {
            "documents": len(self.names), "tokens": len(self.tokens), "words": len(words), "bytes": len(self.text),
        }  # fmt: skip


def prepare_questions(
    corpus_name: str,
    split: Split,
    tokenizer: PreTrainedTokenizerBase,
    progress: Callable[[int], None] = lambda tokens: None,
) -> QuestionSplit:
    """The split, tokenised now or at any earlier time."""
    marks = marks_of(tokenizer)
    corpus: Any = open_corpus(corpus_name)
    key = f"questions {_FORMAT} {corpus.fingerprint(split)} {tokenizers.fingerprint(tokenizer)}"
    folder = cache_folder() / f"{corpus.name}-{split}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"
    made_once(folder, lambda: _build(corpus, split, tokenizer, folder, progress))
    about = json.loads((folder / "about.json").read_text())
    if not about["names"]:
        raise UserError(
            f"corpus: the {split} split of {corpus_name} has no question with an answer and a text to read."
        )
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    chosen = np.arange(len(about["names"]))
    return QuestionSplit(**arrays, **about, closed=corpus.closed, marks=marks, chosen=chosen)


def marks_of(tokenizer: PreTrainedTokenizerBase) -> Marks:
    """A tokenizer's own; refused where it has none."""
    found = Marks(tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
    missing = [name for name, token in zip(("CLS", "SEP", "padding"), found, strict=True) if token is None]
    if missing:
        raise UserError(
            f"tokenizer: it has no {missing[0]} token, which windows with a question need; take an encoder's own."
        )
    return found


def _build(
    corpus: QuestionCorpus,
    split: Split,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    progress: Callable[[int], None],
) -> None:
    kept: list[Question] = []
    unusable, blank = 0, tokenizer.mask_token or "…"

    def documents() -> Iterator[Document]:
        nonlocal unusable
        for question in corpus.questions(split):
            if not question.answers or not any(map(str.strip, question.paragraphs)):
                unusable += 1
            else:
                kept.append(question)
                asked = question.text.replace(BLANK, blank)
                yield from (Document(text.encode("utf-8", "replace")) for text in (asked, *question.paragraphs))

    token_type = np.min_scalar_type(max(tokenizer.get_vocab().values()))
    tokens, asked, begins, ends, spans = ([np.zeros(0, dtype=np.int64)] for _ in range(5))
    text, starts, firsts, asked_starts = bytearray(), [0], [0], [0]
    encoded = tokenizers.encode(tokenizer, documents())
    for at, (_, ids, _) in enumerate(encoded):  # a question, and then each of its paragraphs
        question = kept[at]
        asked.append(ids)
        asked_starts.append(asked_starts[-1] + len(ids))
        for number, paragraph in enumerate(question.paragraphs):
            document, ids, token_ends = next(encoded)
            token_begins = np.concatenate([[0], token_ends[:-1]])[: len(ids)]
            spans.append(_token_spans(question, number, paragraph, token_ends, starts[-1], at))
            tokens.append(ids)
            begins.append(len(text) + token_begins)
            ends.append(len(text) + token_ends)
            text += document.data
            starts.append(starts[-1] + len(ids))
        firsts.append(len(starts) - 1)
        progress(starts[-1])
    arrays = {
        "tokens": np.concatenate(tokens).astype(token_type), "begins": np.concatenate(begins),
        "ends": np.concatenate(ends), "paragraph_starts": np.array(starts), "first_paragraphs": np.array(firsts),
        "asked": np.concatenate(asked).astype(token_type), "asked_starts": np.array(asked_starts),
        "spans": np.concatenate([one.reshape(-1, 3) for one in spans]),
        "text": np.frombuffer(bytes(text), dtype=np.uint8),
    }  # fmt: skip
    about = {
        "names": [question.name for question in kept], "answers": [question.answers for question in kept],
        "unusable": unusable,
    }  # fmt: skip
    with whole_folder(folder) as partial:
        for name, array in arrays.items():
            np.save(partial / f"{name}.npy", array)
        (partial / "about.json").write_text(json.dumps(about))


def _token_spans(
    question: Question, paragraph: int, text: str, token_ends: np.ndarray, first_token: int, number: int
) -> np.ndarray:
    """Rows of the question's number, first and last token, of the answers in one paragraph."""
    found = []
    for where, begin, end in question.spans:
        if where == paragraph:
            first_byte, end_byte = (len(text[:edge].encode("utf-8", "replace")) for edge in (begin, end))
            first = int(np.searchsorted(token_ends, first_byte, side="right"))
            last = int(np.searchsorted(token_ends, end_byte, side="left"))
            found.append((number, first_token + first, first_token + min(last, len(token_ends) - 1)))
    return np.array(found, dtype=np.int64).reshape(-1, 3)
