"""Where a state helps: the losses of a recurrent reading less those of a plain one, over groups of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recur_tune.analysis.look.words import NAME, OTHER, RARE, Words
from recur_tune.analysis.topics.comparison import standard_error
from recur_tune.tasks.language_modelling.evaluation import TokenScores

_POSITIONS = (0, 1, 4, 16, 64, 256, 1024)  # where groups of positions begin
_DISTANCES = (1, 32, 128, 512, 2048, 8192)
ALL, POSITION, DISTANCE, KIND = (
    "all",
    "position in the window",
    "tokens since the word's last occurrence",
    "kind of word",
)


@dataclass(frozen=True)
class Group:
    """Tokens that have something in common, and what the state changes there.

    Attributes:
        by: What the tokens are grouped by.
        name: What they have in common.
        tokens: How many there are.
        recurrent: Nats per token, with the state.
        plain: The same without it, or of the baseline.
        difference: The first less the second; below 0 the state helps.
        standard_error: Of the difference, where documents are independent.
    """

    by: str
    name: str
    tokens: int
    recurrent: float
    plain: float
    difference: float
    standard_error: float


def compare(recurrent: TokenScores, plain: TokenScores, words: Words) -> list[Group]:
    """Both readings of the same split, by groups; positions are those of the recurrent one. Empty groups are left
    out."""
    scored = (recurrent.depth >= 0) & (plain.depth >= 0)
    found = []
    for by, name, inside in _groups(recurrent, words):
        those = np.flatnonzero(inside & scored)
        if not len(those):
            continue
        one, other = (scores.nll[those].astype(np.float64) for scores in (recurrent, plain))
        error = standard_error(one - other, words.document[those])
        mean, baseline = float(one.mean()), float(other.mean())
        found.append(Group(by, name, len(those), mean, baseline, mean - baseline, error))
    return found


def _groups(scores: TokenScores, words: Words) -> Iterator[tuple[str, str, np.ndarray]]:
    yield ALL, "all tokens", np.ones(len(scores.nll), dtype=bool)
    for name, low, high in _steps(_POSITIONS):
        yield POSITION, name, (scores.position >= low) & (scores.position < high)
    for name, low, high in _steps(_DISTANCES):
        yield DISTANCE, name, (words.distance >= low) & (words.distance < high)
    yield DISTANCE, "never before", words.distance == 0
    for kind in (NAME, RARE, OTHER):
        for when, seen in (("seen before", words.distance > 0), ("new", words.distance == 0)):
            yield KIND, f"{kind}, {when}", (words.kind == kind) & seen


def _steps(begins: tuple[int, ...]) -> Iterator[tuple[str, int, float]]:
    """Groups from each number to the one below the next."""
    for low, high in zip(begins, (*begins[1:], np.inf), strict=True):
        name = f"{low:,} or more" if high == np.inf else f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        yield name, low, high
