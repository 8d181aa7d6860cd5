"""Answers of a model to the questions of a split: the best span of all windows, or yes or no.

Shape suffixes: B rows of a batch, T positions, L lengths of a span, K hidden size, Q questions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from recur_tune.common.precision import Precision
from recur_tune.common.shape import ANSWER_KINDS
from recur_tune.common.windowing import BEGIN
from recur_tune.models.encoder import WindowedEncoder
from recur_tune.models.span_loss import NEVER, SPAN, at_answer, in_text
from recur_tune.ops.device import autocast
from recur_tune.tasks.question_answering.answer_scores import exact_match, f1
from recur_tune.tasks.question_answering.question_tokens import QuestionSplit
from recur_tune.tasks.question_answering.question_windows import QUESTION, Layout, kind_of, question_batches, remarks_on
from recur_tune.tasks.reading import read_on
from recur_tune.tasks.seam import GivenState


@dataclass(frozen=True)
class AnswerEvaluation:
    """What a model makes of a split, question by question in its order.

    Attributes:
        names: Of the questions.
        answers: What it answers.
        f1: Of each.
        exact: Of each, exact match.
        nll: Nats; nothing for a question whose answer stands in no window.
        tokens: Of all texts together.
        windows: In which they were read.
        remarks: On what was not read as it is.
        seconds: That it took.
    """

    names: list[str]
    answers: list[str]
    f1: list[float]
    exact: list[float]
    nll: list[float | None]
    tokens: int
    windows: int
    remarks: list[str]
    seconds: float

    def metrics(self) -> dict[str, float]:
        """The numbers that people compare."""
        share, exact, known = _mean(self.f1), _mean(self.exact), [one for one in self.nll if one is not None]
        return {
            "f1": share, "exact_match": exact, "f1_error": 1 - share, "exact_match_error": 1 - exact,
            "loss": _mean(known),
        }  # fmt: skip

    def counts(self) -> dict[str, Any]:
        """What was scored, and how fast."""
        return {
            "questions": len(self.names), "windows": self.windows, "tokens": self.tokens,
            "tokens per second": f"{self.tokens / self.seconds:.0f}",
        }  # fmt: skip

    def tables(self) -> dict[str, list[dict[str, str]]]:
        """None."""
        return {}

    def report(self) -> dict[str, Any]:
        """Everything, as plain values for JSON."""
        each = zip(self.names, self.answers, self.f1, self.exact, self.nll, strict=True)
        return {
            **self.metrics(),
            "questions": len(self.names), "tokens": self.tokens, "windows": self.windows,
            "tokens_per_second": self.tokens / self.seconds, "remarks": self.remarks,
            "answers": [
                {"id": name, "answer": answer, "f1": share, "exact_match": exact, "nll": nll}
                for name, answer, share, exact, nll in each
            ],
        }  # fmt: skip


@torch.no_grad()
def evaluate_answers(
    model: WindowedEncoder,
    split: QuestionSplit,
    layout: Layout,
    longest: int,
    batch_size: int = 16,
    precision: Precision = "auto",
    progress: Callable[[int], None] = lambda tokens: None,
    given: GivenState = "own",
) -> AnswerEvaluation:
    """Answer every question; the result does not depend on the batch size.

    Args:
        model: An encoder with its heads.
        split: The questions.
        layout: How they become windows.
        longest: Tokens of the longest span that is taken for an answer.
        batch_size: Questions that are read side by side.
        precision: Of products.
        progress: Hears how many tokens have been read.
        given: The state that a window gets: its question's own, none, or another question's.
    """
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    started, state, read, windows = time.perf_counter(), None, 0, 0
    found = _Found(model, split, layout, longest)
    for batch, table_B5 in question_batches(split, layout, batch_size, carry_state=model.recurrence is not None):
        on_device = batch.to(device)
        with autocast(device, precision):
            top_BTK, state = read_on(model, on_device, table_B5, state, layout.windowing.overlap, given)
        windows += found.look(top_BTK.float(), on_device.targets_WBT[0], table_B5)
        read += batch.scored
        progress(read)
    answers, nll = found.answers()
    model.train(was_training)
    right = [split.answers[question] for question in split.chosen]
    return AnswerEvaluation(
        names=[split.names[question] for question in split.chosen],
        answers=answers,
        f1=[f1(answer, one, split.closed) for answer, one in zip(answers, right, strict=True)],
        exact=[exact_match(answer, one) for answer, one in zip(answers, right, strict=True)],
        nll=nll,
        tokens=read,
        windows=windows,
        remarks=remarks_on(split, layout),
        seconds=time.perf_counter() - started,
    )


class _Best(NamedTuple):
    """A span of a window: its score, and its first and last token in the split."""

    score: float
    first: int
    last: int


class _Found:
    """What the windows of every question say together, as far as they have been read."""

    def __init__(self, model: WindowedEncoder, split: QuestionSplit, layout: Layout, longest: int) -> None:
        self._model, self._split, self._layout, self._longest = model, split, layout, longest
        self._place = {int(question): at for at, question in enumerate(split.chosen)}
        questions = len(self._place)
        self._best = [_Best(-np.inf, 0, 0)] * questions
        self._first_QK = torch.full((questions, model.config.hidden_size), -torch.inf, device=model.device)
        # Log-sums of all scores and of the right ones, of starts and ends.
        self._sums_Q22 = np.full((questions, 2, 2), -np.inf)

    def look(self, top_BTK: torch.Tensor, targets_BT: torch.Tensor, table_B5: np.ndarray) -> int:
        """At a window of every row that has one, some perhaps of the same question; how many there were."""
        rows = np.flatnonzero(table_B5[:, QUESTION] >= 0)
        questions = table_B5[rows, QUESTION].tolist()
        at = [self._place[question] for question in questions]
        spans_BT2 = self._model.qa_outputs(top_BTK[rows])
        for place, question, begin, (score, first, last) in zip(
            at, questions, table_B5[rows, BEGIN].tolist(),
            zip(*_best_spans(spans_BT2, targets_BT[rows], self._longest), strict=True), strict=True,
        ):  # fmt: skip
            shift = begin - self._layout.text_begins(self._split, question)
            self._best[place] = max(self._best[place], _Best(score, first + shift, last + shift))
        sums_B22 = _log_sums(spans_BT2, targets_BT[rows]).cpu().numpy()
        np.logaddexp.at(self._sums_Q22, at, sums_B22)
        self._first_QK.index_reduce_(0, torch.tensor(at, device=top_BTK.device), top_BTK[rows, 0], "amax")
        return len(rows)

    def answers(self) -> tuple[list[str], list[float | None]]:
        """Of every question, and how unlikely the right one was held to be, in nats."""
        kinds_Q3 = self._model.answer_kind(self._first_QK).log_softmax(-1).cpu()
        answers = [
            self._split.text_between(span.first, span.last) if kind == SPAN else ANSWER_KINDS[kind]
            for span, kind in zip(self._best, kinds_Q3.argmax(-1).tolist(), strict=True)
        ]
        nll = [
            _nll(kinds_Q3[at], self._sums_Q22[at], kind_of(self._split, question))
            for question, at in self._place.items()
        ]
        return answers, nll


def _best_spans(
    spans_BT2: torch.Tensor, targets_BT: torch.Tensor, longest: int
) -> tuple[list[float], list[int], list[int]]:
    """In every row the span of the text with the highest sum of a start's and an end's score: that sum, and where the
    span starts and ends."""
    start_BT, end_BT = spans_BT2.masked_fill(~in_text(targets_BT)[..., None], NEVER).unbind(-1)
    last_BT, length_BT = F.pad(end_BT, (0, longest - 1), value=NEVER).unfold(1, longest, 1).max(-1)
    score_B, first_B = (start_BT + last_BT).max(1)
    length_B = length_BT.gather(1, first_B[:, None])[:, 0]
    return score_B.tolist(), first_B.tolist(), (first_B + length_B).tolist()


def _log_sums(spans_BT2: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Of the exponentials of all scores and of the right ones, [B, 2, 2]."""
    return torch.stack(
        [
            spans_BT2.masked_fill(~those, -torch.inf).logsumexp(1)
            for those in (in_text(targets_BT)[..., None], at_answer(targets_BT))
        ],
        dim=1,
    )


def _nll(kind_3: torch.Tensor, sums_22: np.ndarray, kind: int) -> float | None:
    of_all, of_right = sums_22
    if kind == SPAN and not np.isfinite(of_right).all():
        return None
    return float(-kind_3[kind]) + (float((of_all - of_right).sum()) if kind == SPAN else 0.0)


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))
