"""Text to tokens, once: memory-mapped arrays in a cache that is named by content.

A split is a folder of flat arrays: `tokens`, the words that begin in each token, the bytes that each token
covers, the documents' first tokens, and the tokens marked as answers; a word is what white space separates, as
in Python's `str.split`. The folder's name is a digest of the documents, the tokenizer and this format, so a stale
entry cannot be mistaken for a fresh one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder, mapped, whole_folder
from recur_tune.common.made_once import made_once
from recur_tune.data import tokenizers
from recur_tune.data.corpora.document import Corpus, Document, Split
from recur_tune.data.corpora.registry import open_corpus
from recur_tune.data.teacher import TeacherPredictions

_FORMAT = 4  # 3 had all bytes of a character in the first of its tokens, and words that no-break spaces join
_INTO_A_DOCUMENT = 5_000  # tokens; a state has been passed on a few times by then
_SPACE = np.frombuffer(b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f ", dtype=np.uint8)
_WIDE_SPACE = re.compile(  # in UTF-8: no-break, ideographic and typographic spaces
    rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
)


@dataclass(frozen=True)
class TokenisedSplit:
    """A split as arrays over its tokens, documents one after another."""

    tokens: np.ndarray
    word_starts: np.ndarray  # words that begin in each token
    byte_lengths: np.ndarray  # bytes of text that each token covers
    document_starts: np.ndarray  # the first token of each document, and the total last
    answers: np.ndarray  # indices of the tokens that answer a question
    teacher: TeacherPredictions | None = None  # of the token behind each
    is_sample: bool = False  # its documents are stretches of those of the corpus

    def document_inputs(self) -> Iterator[tuple[int, int]]:
        """For each document the tokens that have a successor in it, as [begin, end)."""
        for begin, end in self._spans():
            if end - begin > 1:
                yield begin, end - 1

    def head(self, limit: int) -> TokenisedSplit:
        """About the first `limit` tokens; the last document is cut where they end."""
        if limit >= len(self.tokens):
            return self
        starts = self.document_starts[self.document_starts < limit]
        return TokenisedSplit(
            tokens=self.tokens[:limit],
            word_starts=self.word_starts[:limit],
            byte_lengths=self.byte_lengths[:limit],
            document_starts=np.append(starts, limit),
            answers=self.answers[self.answers < limit],
            is_sample=self.is_sample,
        )

    def openings(self, limit: int) -> TokenisedSplit:
        """The first `limit` tokens of every document."""
        return self._stretches((begin, min(limit, end - begin)) for begin, end in self._spans())

    def pieces(self, length: int) -> TokenisedSplit:
        """The same tokens, cut so that no document is longer: each piece is a document."""
        starts = [at for begin, end in self._spans() for at in (range(begin, end, length) if end > begin else [begin])]
        return replace(self, document_starts=np.array([*starts, len(self.tokens)], dtype=np.int64))

    def sample(self, limit: int) -> TokenisedSplit:
        """About `limit` tokens: of every document its opening, or of few documents several stretches, each long enough
        to get into. Stretches are read side by side, which one long document could not be."""
        documents = len(self.document_starts) - 1
        each = limit // _INTO_A_DOCUMENT // documents
        if each == 0:
            return replace(self.openings(_INTO_A_DOCUMENT).head(limit), is_sample=True)
        length = limit // (each * documents)
        stretches = self._stretches(
            (begin + at * (end - begin) // here, min(length, end - begin))
            for begin, end in self._spans()
            for here in [max(1, min(each, (end - begin) // length))]
            for at in range(here)
        )
        return replace(stretches, is_sample=True)

    def _stretches(self, spans: Iterable[tuple[int, int]]) -> TokenisedSplit:
        """Stretches of tokens, each given by its first token and length, as documents."""
        begins, lengths = np.array(list(spans), dtype=np.int64).reshape(-1, 2).T
        kept = np.concatenate([np.arange(at, at + n) for at, n in zip(begins, lengths, strict=True)])
        return TokenisedSplit(
            tokens=self.tokens[kept],
            word_starts=self.word_starts[kept],
            byte_lengths=self.byte_lengths[kept],
            document_starts=np.concatenate([[0], np.cumsum(lengths)]),
            answers=np.flatnonzero(np.isin(kept, self.answers)),
        )

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Every document as [begin, end)."""
        return zip(self.document_starts[:-1].tolist(), self.document_starts[1:].tolist(), strict=True)

    def summary(self) -> dict[str, int]:
        """What `recur-tune data prepare` prints."""
        return {
            "documents": len(self.document_starts) - 1,
            "tokens": len(self.tokens),
            "words": int(self.word_starts.sum(dtype=np.int64)),
            "bytes": int(self.byte_lengths.sum(dtype=np.int64)),
        }


def prepare(
    corpus_name: str,
    split: Split,
    tokenizer: PreTrainedTokenizerBase,
    progress: Callable[[int], None] = lambda tokens: None,
) -> TokenisedSplit:
    """The split, tokenised now or at any earlier time; several processes may ask at once and one does the work.

    `progress` is called with the number of tokens written so far.
    """
    corpus = open_corpus(corpus_name)
    key = f"{_FORMAT} {corpus.fingerprint(split)} {corpus.token_limit(split)} {tokenizers.fingerprint(tokenizer)}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:20]
    folder = cache_folder() / f"{re.sub(r'[^a-z0-9-]', '-', corpus.name)}-{split}-{digest}"
    made_once(folder, lambda: _build(corpus, split, tokenizer, folder, progress))
    return nonempty(_open(folder), f"the {split} split of {corpus_name}")


def nonempty(prepared: TokenisedSplit, what: str) -> TokenisedSplit:
    """Refuse a split in which nothing can be scored."""
    if next(prepared.document_inputs(), None) is None:
        raise UserError(
            f"corpus: {what} has no document of two tokens or more; there is nothing to train on or to score in it."
        )
    return prepared


def _build(
    corpus: Corpus, split: Split, tokenizer: PreTrainedTokenizerBase, folder: Path, progress: Callable[[int], None]
) -> None:
    token_type = np.min_scalar_type(max(tokenizer.get_vocab().values()))
    # What a token covers is one byte for bytes; elsewhere a run of dropped spaces may be of any length.
    count_type = np.dtype(np.uint8 if tokenizers.is_bytes(tokenizer) else np.uint32)
    limit = corpus.token_limit(split)
    starts, answers = [0], [np.zeros(0, dtype=np.int64)]
    with (
        whole_folder(folder) as partial,
        (partial / "tokens.bin").open("wb") as tokens_file,
        (partial / "word_starts.bin").open("wb") as words_file,
        (partial / "byte_lengths.bin").open("wb") as bytes_file,
    ):
        for document, ids, ends in tokenizers.encode(tokenizer, corpus.documents(split)):
            ids, ends = ids[:limit], ends[:limit]
            words, lengths, marked = _measure(document, ends)
            tokens_file.write(ids.astype(token_type).tobytes())
            words_file.write(words.astype(count_type).tobytes())
            bytes_file.write(lengths.astype(count_type).tobytes())
            answers.append(starts[-1] + marked)
            starts.append(starts[-1] + len(ids))
            progress(starts[-1])
        np.save(partial / "document_starts.npy", np.array(starts, dtype=np.int64))
        np.save(partial / "answers.npy", np.concatenate(answers))
        (partial / "meta.json").write_text(json.dumps({"token_type": token_type.name, "count_type": count_type.name}))


def _measure(document: Document, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each token: words that begin in it, bytes that it covers; and the tokens in which an answer ends."""
    words_before = np.concatenate([[0], np.cumsum(word_starts(document.data))])
    # A text that had to be repaired on decoding may be longer than its bytes.
    ends = np.minimum(ends, len(document.data))
    begins = np.concatenate([[0], ends[:-1]])[: len(ends)]
    marked = [int(np.searchsorted(ends, end)) for _, end in document.answers]
    kept = np.array([token for token in marked if token < len(ends)], dtype=np.int64)
    return words_before[ends] - words_before[begins], ends - begins, kept


def word_starts(data: bytes) -> np.ndarray:
    """For each byte whether a word begins there."""
    space = np.isin(np.frombuffer(data, dtype=np.uint8), _SPACE)
    for wide in _WIDE_SPACE.finditer(data):
        space[wide.start() : wide.end()] = True
    return ~space & np.concatenate([[True], space[:-1]])[: len(data)]


def _open(folder: Path) -> TokenisedSplit:
    meta = json.loads((folder / "meta.json").read_text())
    return TokenisedSplit(
        tokens=mapped(folder / "tokens.bin", meta["token_type"]),
        word_starts=mapped(folder / "word_starts.bin", meta["count_type"]),
        byte_lengths=mapped(folder / "byte_lengths.bin", meta["count_type"]),
        document_starts=np.load(folder / "document_starts.npy"),
        answers=np.load(folder / "answers.npy"),
    )
