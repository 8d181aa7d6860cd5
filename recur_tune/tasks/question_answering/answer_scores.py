"""Exact match and F1 of answers, as HotpotQA and SQuAD define them officially."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """In lower case, without ASCII punctuation and articles, with single spaces between words."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(given: str, right: Collection[str]) -> float:
    """1 where it is one of the right answers once all are normalised."""
    return float(normalised(given) in map(normalised, right))


def f1(given: str, right: Collection[str], closed: Collection[str] = ()) -> float:
    """The harmonic mean of precision and recall over words, for the right answer that it is nearest to; a `closed`
    answer is right as a whole or not at all."""
    return max(_f1(normalised(given), normalised(one), closed) for one in right)


def _f1(given: str, right: str, closed: Collection[str]) -> float:
    if given != right and not {given, right}.isdisjoint(closed):
        return 0.0
    given_words, right_words = given.split(), right.split()
    shared = (Counter(given_words) & Counter(right_words)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(given_words), shared / len(right_words)
    return 2 * precision * recall / (precision + recall)
