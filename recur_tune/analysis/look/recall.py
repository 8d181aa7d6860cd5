"""Recall over text: a fact is put into a document, and asked for so many tokens later.

The fact is `The name of the ferryman was Rosalind.`, between two stretches of a held-out document. At the end stands
`The name of the ferryman was`. A fact is *found* if the model's likeliest tokens spell the name, and *chosen* if the
name is likelier there than each of the other names; chance chooses one of eight.

Shape suffixes: B questions read side by side, C candidates, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from recur_tune.common.errors import UserError
from recur_tune.common.precision import Precision
from recur_tune.common.windowing import Windowing
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.models import State, WindowedDecoder
from recur_tune.models.loss import likelihoods, padded_weight
from recur_tune.ops.device import autocast
from recur_tune.tasks.seam import GivenState

NAMES = ("Bartholomew", "Rosalind", "Ezekiel", "Wilhelmina", "Thaddeus", "Clementine", "Ignatius", "Philippa")
_WHO = ("ferryman", "lighthouse keeper", "blacksmith", "gardener", "schoolmistress", "innkeeper", "watchmaker")
_BEFORE = 256  # tokens of a document before the fact
_SEED = 0


@dataclass(frozen=True)
class Recall:
    """How often facts from so many tokens ago were found, and chosen among the names."""

    distance: int
    asked: int
    found: float
    chosen: float

    @property
    def standard_errors(self) -> tuple[float, float]:
        """Of both shares."""
        return tuple(math.sqrt(share * (1 - share) / self.asked) for share in (self.found, self.chosen))  # type: ignore[return-value]


@dataclass(frozen=True)
class Questions:
    """Texts of equal length that end before the answer.

    Attributes:
        texts_BT: Their tokens.
        answers: The tokens of each name.
        right_B: The number of the right one.
    """

    texts_BT: np.ndarray
    answers: Sequence[Sequence[int]]
    right_B: np.ndarray


def make_questions(split: TokenisedSplit, tokenizer: PreTrainedTokenizerBase, distance: int, count: int) -> Questions:
    """So many questions whose answer stands `distance` tokens behind the name in the fact; names take turns."""
    random = np.random.default_rng([_SEED, distance])
    answers = [_encode(tokenizer, f" {name}") for name in NAMES]
    sizes = np.diff(split.document_starts)
    texts, right_B = [], np.arange(count) % len(NAMES)
    for number, right in enumerate(right_B.tolist()):
        who = _WHO[number % len(_WHO)]
        asked, full_stop = _encode(tokenizer, f"\n\nThe name of the {who} was"), _encode(tokenizer, ".\n\n")
        fact = [*asked, *answers[right], *full_stop]
        before, between = _BEFORE - len(asked), distance - len(answers[right]) - len(full_stop) - len(asked)
        if between < 0:
            raise UserError(f"distance: {distance} tokens have no room for a fact and a question; choose 100 or more.")
        long_enough = np.flatnonzero(sizes >= before + between)
        if not len(long_enough):
            raise UserError(
                f"distance: {distance} tokens and the {before} before them are more than any document has; the longest "
                f"has {sizes.max()}; choose fewer by --distance."
            )
        document = long_enough[number % len(long_enough)]
        begin = split.document_starts[document] + random.integers(sizes[document] - before - between + 1)
        text = split.tokens[begin : begin + before + between].tolist()
        texts.append([*text[:before], *fact, *text[before:], *asked])
    return Questions(np.array(texts), answers, right_B)


@torch.no_grad()
def recall(
    model: WindowedDecoder, questions: Questions, distance: int, windowing: Windowing, batch_size: int = 16,
    precision: Precision = "auto", given: GivenState = "own", progress: Callable[[int], None] = lambda tokens: None,
) -> Recall:  # fmt: skip
    """Ask a model; `given` none reads every window without a state."""
    was_training, found, chosen, read = model.training, 0, 0, 0
    model.eval()
    carries = given == "own" and model.recurrence is not None
    for begin in range(0, len(questions.right_B), batch_size):
        part = slice(begin, begin + batch_size)
        nll_BC, spelt_BC = _answers(model, questions, part, windowing, precision, carries)
        right_B = questions.right_B[part]
        chosen += int((nll_BC.argmin(1) == right_B).sum())
        found += int(spelt_BC[np.arange(len(right_B)), right_B].sum())
        read += questions.texts_BT[part].size
        progress(read)
    model.train(was_training)
    asked = len(questions.right_B)
    return Recall(distance, asked, found / asked, chosen / asked)


def _answers(
    model: WindowedDecoder, questions: Questions, part: slice, windowing: Windowing, precision: Precision, carries: bool
) -> tuple[np.ndarray, np.ndarray]:
    """For some questions each name's negative log-likelihood, and whether it is the likeliest at every token.

    The text is read once; where the answer begins, the state is copied for every name.
    """
    texts_BT, answers, device = questions.texts_BT[part], questions.answers, model.device
    length, longest, count = texts_BT.shape[1], max(map(len, answers)), len(answers)
    ends_CT = np.array([[*answer, *[0] * (longest - len(answer))] for answer in answers])
    whole_BCT = np.concatenate(
        [np.repeat(texts_BT[:, None], count, 1), np.repeat(ends_CT[None], len(texts_BT), 0)], axis=-1
    )
    state: State | None = None
    nll_BC, spelt_BC = np.zeros(whole_BCT.shape[:2]), np.ones(whole_BCT.shape[:2], dtype=bool)
    counted_C = np.array([len(answer) for answer in answers])
    with autocast(device, precision):
        head_VK = padded_weight(model.lm_head.weight)
        is_split = False
        for first, last, scored in windowing.cut(0, length + longest - 1).tolist():
            asks = last >= length
            if not asks and not carries:
                continue
            if asks and not is_split:
                is_split = True
                state = None if state is None else tuple(one.repeat_interleave(count, 0) for one in state)
            rows = whole_BCT.reshape(-1, whole_BCT.shape[-1]) if asks else texts_BT
            tokens = torch.from_numpy(rows[:, first:last].astype(np.int64)).to(device)
            reading = model.read(tokens, state, overlap=windowing.overlap)
            state = reading.state if carries else None
            if not asks:
                continue
            for at, place in _places(length, longest, scored, last):
                target = torch.from_numpy(np.ascontiguousarray(rows[:, place + 1]).astype(np.int64)).to(device)
                found = likelihoods(reading.top_BTK[:, place - first], head_VK, target, len(model.lm_head.weight))
                nll, correct = (one.view(nll_BC.shape).cpu().numpy() for one in found)
                counts_C = at < counted_C
                nll_BC += nll * counts_C
                spelt_BC &= correct | ~counts_C
    return nll_BC, spelt_BC


def _places(length: int, longest: int, scored: int, last: int) -> Iterator[tuple[int, int]]:
    """For the answer's tokens that a window scores: their number in the answer, and the place that predicts them."""
    for at in range(longest):
        place = length + at - 1
        if scored <= place < last:
            yield at, place


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)
