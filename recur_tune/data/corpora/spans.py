"""`spans`: recurring span selection, questions made from plain text (Ram et al. 2021).

Words that recur in a text are hidden in one of its sentences. That sentence is the question, and is taken out; the
answer stands in another. So a model can learn to find spans where there is much text and there are few questions.

What is worth hiding is told by capitals, by digits and by how many texts have a word: there is no list of any
language's words, only spaces between them are needed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np

from recur_tune.data.corpora.document import SPLITS, Corpus, Extent, Split
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.questions import BLANK, Question, QuestionCorpus, places_of
from recur_tune.data.corpora.text_folder import TextFolder

PIECE_WORDS = 400  # of a text: two or three windows of 300 tokens, so that the answer is in reach
PIECE_QUESTIONS = 5  # at most: each of them reads all of the piece
SPAN_WORDS = 5
_AROUND = 12  # words on either side of what is hidden: more would not fit into the usual room for a question
_LEAST = 6  # words that are not hidden: fewer do not tell what is missing
_COMMON, _RARE = 1 / 5, 1 / 100  # of the pieces: a common word is in more, a rare one in no more

_WORD = re.compile(r"\w+(?:[-.]\w+|['’]\w\w+)*")  # O'Brien is one word; Brien's are two
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*\s+(?=\S)")
_OPENING = "\"'“‘(["


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the number of its paragraph."""

    text: str
    paragraph: int

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Where each word begins and ends."""
        return [match.span() for match in _WORD.finditer(self.text)]

    @cached_property
    def words(self) -> list[str]:
        """The words themselves."""
        return [self.text[begin:end] for begin, end in self.places]

    def spans(self, edges: set[str]) -> Iterator[tuple[int, int, str]]:
        """Words in a row that begin and end with one of these, as first, last and text; of each beginning the longest
        first."""
        for first in [at for at, word in enumerate(self.words) if word in edges]:
            last = first
            while last - first + 1 < SPAN_WORDS and self._goes_on(last):
                last += 1
            for end in range(last, first - 1, -1):
                if self.words[end] in edges:
                    yield first, end, self.text[self.places[first][0] : self.places[end][1]]

    def worth_hiding(self, first: int, last: int, rare: set[str]) -> bool:
        """Names, numbers and rare words are, but not a part of a name. What a sentence begins with tells nothing by its
        capital."""
        if first > 1 and self._goes_on(first - 1) and self.words[first - 1][0].isupper():
            return False
        if self._goes_on(last) and self.words[last + 1][0].isupper():
            return False
        words = self.words[first : last + 1]
        names = any(word[0].isupper() for word in words[first == 0 :])
        numbers = any(len(word) > 2 and any(map(str.isdigit, word)) for word in words)
        return names or numbers or any(word.lower() in rare for word in words)

    def without(self, first: int, last: int) -> str:
        """The question: what stands around these words."""
        begin = self.places[first - _AROUND][0] if first > _AROUND else 0
        end = self.places[last + _AROUND][1] if last + _AROUND < len(self.places) - 1 else len(self.text)
        return self.text[begin : self.places[first][0]] + BLANK + self.text[self.places[last][1] : end]

    def _goes_on(self, at: int) -> bool:
        """Whether nothing but a space stands between a word and the next."""
        return at + 1 < len(self.places) and self.text[self.places[at][1] : self.places[at + 1][0]] == " "


Piece = Sequence[Sentence]


class SpansCorpus(QuestionCorpus):
    """Questions of the words that recur in texts."""

    name, closed = "spans", frozenset[str]()

    def __init__(self, texts: Corpus) -> None:
        self._texts = texts

    def look(self, split: Split) -> Extent | None:
        """At the texts."""
        return self._texts.look(split)

    def questions(self, split: Split) -> Iterator[Question]:
        """A few of each piece, drawn from a seed of its own."""
        pieces, having = 0, Counter[str]()
        for piece in self._pieces(split):
            pieces += 1
            having.update({word.lower() for sentence in piece for word in sentence.words})
        # A word is in one piece at least, however few there are.
        common = {word for word, count in having.items() if count > max(1, pieces * _COMMON)}
        rare = {word for word, count in having.items() if count <= max(1, pieces * _RARE)}
        for number, piece in enumerate(self._pieces(split)):
            random = np.random.default_rng([SPLITS.index(split), number])
            found = recurring(piece, common, rare)
            drawn = [list(found)[at] for at in random.permutation(len(found))]
            for answer in sorted(drawn, key=str.islower)[:PIECE_QUESTIONS]:  # names and numbers before other words
                places = found[answer]
                asked, text = places[random.integers(len(places))]
                paragraphs = _joined([one for one in piece if one is not asked])
                spans = places_of(answer, paragraphs, range(len(paragraphs)))
                yield Question(f"{split} {number} {answer}", text, paragraphs, (answer,), tuple(spans))

    def fingerprint(self, split: Split) -> str:
        """That of the texts, and how questions are made of them."""
        made = (PIECE_WORDS, PIECE_QUESTIONS, SPAN_WORDS, _AROUND, _LEAST, _COMMON, _RARE)
        return f"{self._texts.fingerprint(split)} {self.name} {made} 1"

    def _pieces(self, split: Split) -> Iterator[Piece]:
        for document in self._texts.documents(split):
            yield from pieces_of(document.data.decode())


def pieces_of(text: str) -> Iterator[Piece]:
    """A text as sentences, as many together as a piece has room for."""
    piece: list[Sentence] = []
    words = 0
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
        for sentence in sentences_of(" ".join(paragraph.split())):
            one = Sentence(sentence, number)
            if piece and words + len(one.words) > PIECE_WORDS:
                yield piece
                piece, words = [], 0
            piece.append(one)
            words += len(one.words)
    if piece:
        yield piece


def sentences_of(paragraph: str) -> list[str]:
    """Cut behind full stops, but not where an initial, a short title (Mr, St) or a small letter speaks against it."""
    cuts = [0]
    for match in _SENTENCE_END.finditer(paragraph):
        word = paragraph[paragraph.rfind(" ", 0, match.start()) + 1 : match.start()].lstrip(_OPENING)
        short = paragraph[match.start()] == "." and len(word) < 4 and word.istitle()
        if not short and not paragraph[match.end()].islower():
            cuts.append(match.end())
    return [one for begin, end in pairwise([*cuts, len(paragraph)]) if (one := paragraph[begin:end].strip())]


def recurring(piece: Piece, common: set[str], rare: set[str]) -> dict[str, list[tuple[Sentence, str]]]:
    """The spans that are worth hiding and stand in several sentences; for each, sentences and what they ask without it.

    Args:
        piece: Whose spans.
        common: Words in small letters with which no span begins or ends.
        rare: Words for which a span is worth hiding, as for names and numbers.
    """
    words_in = Counter(word for sentence in piece for word in set(sentence.words))
    edges = {word for word, sentences in words_in.items() if sentences > 1 and word.lower() not in common}
    spans_of = [list(sentence.spans(edges)) for sentence in piece]
    spans_in = Counter(span for spans in spans_of for span in {text for *_, text in spans})
    found: dict[str, list[tuple[Sentence, str]]] = defaultdict(list)
    for sentence, spans in zip(piece, spans_of, strict=True):
        free = 0  # behind the last span that recurs: no part of it is one
        for first, last, text in spans:
            if first < free or spans_in[text] == 1:
                continue
            free, asked = last + 1, sentence.without(first, last)
            tells = text not in asked and len(_WORD.findall(asked)) >= _LEAST
            if tells and sentence.worth_hiding(first, last, rare):
                found[text].append((sentence, asked))
    return found


def _joined(sentences: Piece) -> tuple[str, ...]:
    """As paragraphs."""
    grouped = groupby(sentences, key=lambda sentence: sentence.paragraph)
    return tuple(" ".join(sentence.text for sentence in paragraph) for _, paragraph in grouped)


SPANS = CorpusKind(
    name="spans",
    summary="questions of words that recur in any folder of text files, spans:DIR as text:DIR",
    needs="files",
    open=lambda where: SpansCorpus(TextFolder(where, name="spans")),
    task="question answering",
)
