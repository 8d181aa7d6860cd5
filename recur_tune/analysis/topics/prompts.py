"""Prompts: stretches of held-out documents, each with its true continuation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recur_tune.common.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from recur_tune.data.tokens import TokenisedSplit


@dataclass(frozen=True)
class Prompt:
    """A prompt and its true continuation."""

    document: int  # its number in the split
    tokens: list[int]
    text: str
    truth: str


@dataclass(frozen=True)
class Prompts:
    """The chosen prompts in the order of their documents, and how many documents were too short."""

    chosen: list[Prompt]
    too_short: int

    @property
    def documents(self) -> np.ndarray:
        """The document of each."""
        return np.array([prompt.document for prompt in self.chosen])


def take_prompts(
    split: TokenisedSplit,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    length: int,
    tokens: int,
    seed: int,
    what: str,
) -> Prompts:
    """Evenly over documents and, where several come from one, evenly over it; no two share a token.

    Args:
        split: Held-out documents.
        tokenizer: The split's.
        count: How many are wanted; there may be room for fewer.
        length: Tokens of a prompt.
        tokens: Tokens that truly follow it.
        seed: Decides where in its part of a document a prompt begins.
        what: How a refusal calls the split.
    """
    begins = split.document_starts[:-1]
    sizes, need = np.diff(split.document_starts), length + tokens
    if sizes.max() < need:
        raise UserError(
            f"prompt_tokens: {length} tokens and {tokens} that follow are more than any document of {what} has; the "
            f"longest has {sizes.max()}."
        )
    random, chosen = np.random.default_rng(seed), []
    for document, each in enumerate(shares((sizes // need).tolist(), count)):
        size = int(sizes[document])
        for part in range(each):
            low, high = size * part // each, size * (part + 1) // each
            start = int(begins[document]) + low + int(random.integers(high - need - low + 1))
            ids = split.tokens[start : start + need].tolist()
            text, truth = (tokenizer.decode(part) for part in (ids[:length], ids[length:]))
            chosen.append(Prompt(document, ids[:length], text, truth))
    return Prompts(chosen, too_short=int((sizes < need).sum()))


def shares(rooms: Sequence[int], count: int) -> list[int]:
    """Share `count` out as evenly as the capacities `rooms` allow; a remainder is spread over all."""
    given = [0] * len(rooms)
    while (left := count - sum(given)) > 0:
        open_places = [place for place, room in enumerate(rooms) if room > given[place]]
        if not open_places:
            break
        for at in np.linspace(0, len(open_places) - 1, min(left, len(open_places))).astype(int).tolist():
            given[open_places[at]] += 1
    return given
