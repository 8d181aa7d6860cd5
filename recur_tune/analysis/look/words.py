"""Words of a tokenised text: which tokens each has, when it stood in its document before, and what kind it is."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from recur_tune.data.tokens import TokenisedSplit

NAME, RARE, OTHER = "name", "rare word", "other word"
RARE_AMONG = 20_000  # words, among which a rare one stands once or less

_EDGES = re.compile(r"^[\W_]+|[\W_]+$")
_ENDS_SENTENCE = re.compile(r"[.!?:;\"'”’)\]—–-]\s*$")
_FIRST_PERSON = re.compile(r"^I(\W|$)")


@dataclass(frozen=True)
class Words:
    """What is known of each token's word.

    Attributes:
        distance: Tokens from the beginning of the word's last occurrence in the document to that of this one; 0 where
            it is the first, -1 where a token has no word.
        kind: A name (capitalised in mid-sentence), a rare word, or another; empty where a token has no word.
        document: The number of its document.
    """

    distance: np.ndarray
    kind: np.ndarray
    document: np.ndarray


def words_of(split: TokenisedSplit, tokenizer: PreTrainedTokenizerBase) -> Words:
    """The words of a split; words are what white space separates, without punctuation at their edges, in any case."""
    texts = _token_texts(split, tokenizer)
    starts = np.flatnonzero(split.word_starts)
    document_of = np.searchsorted(split.document_starts, starts, side="right") - 1
    ends = np.minimum(np.append(starts[1:], len(split.tokens)), split.document_starts[document_of + 1])
    raw = [
        "".join(texts[token] for token in split.tokens[at:end].tolist()) for at, end in zip(starts, ends, strict=True)
    ]
    plain = [_EDGES.sub("", word.strip()) for word in raw]
    counts = Counter(word.lower() for word in plain if word)
    most = max(1, len(plain) // RARE_AMONG)
    size = len(split.tokens)
    distance, kind = np.full(size, -1, dtype=np.int64), np.full(size, "", dtype="<U10")
    before: dict[tuple[int, str], int] = {}
    for number, (word, begin, end, document) in enumerate(zip(plain, starts, ends, document_of, strict=True)):
        if not word:
            continue
        here = (int(document), word.lower())
        distance[begin:end] = begin - before[here] if here in before else 0
        before[here] = int(begin)
        inside = number > 0 and document_of[number - 1] == document and not _ENDS_SENTENCE.search(raw[number - 1])
        if inside and _looks_like_a_name(raw[number], word):
            kind[begin:end] = NAME
        else:
            kind[begin:end] = RARE if counts[word.lower()] <= most else OTHER
    document_N = np.searchsorted(split.document_starts, np.arange(size), side="right") - 1
    return Words(distance, kind, document_N)


def _looks_like_a_name(raw: str, word: str) -> bool:
    """Whether a word in mid-sentence is capitalised, and is no `I`, no shouting and no beginning of speech."""
    shouted = len(word) > 1 and word.isupper()
    return word[0].isupper() and raw.strip().startswith(word[0]) and not shouted and not _FIRST_PERSON.match(word)


def _token_texts(split: TokenisedSplit, tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The text of every token that occurs."""
    used = np.unique(split.tokens).tolist()
    return dict(zip(used, tokenizer.batch_decode([[token] for token in used]), strict=True))
