"""Questions to windows: `[CLS] question [SEP] text [SEP]`, and padding where the text ends.

Shape suffixes: W windows of a chain, B rows of a batch, T positions of a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from recur_tune.common.errors import UserError
from recur_tune.common.windowing import BEGIN, END, ENDS, NOT_SCORED, STARTS, Windowing
from recur_tune.data.batches import (
    FRESH,
    IDLE,
    TrainingStream,
    WindowBatch,
    count_scored,
    packed_rows,
    side_by_side,
    starts_of,
)
from recur_tune.tasks.question_answering.question_tokens import QuestionSplit

QUESTION = 4  # in a table of scheduled windows: the question's number; -1 where a row has nothing left to read
_KINDS = {"yes": 1, "no": 2}  # of answers, where they are no span of the text


@dataclass(frozen=True)
class Layout:
    """How questions become windows.

    Attributes:
        windowing: Of the text; what it reserves is for the question and what marks it.
        question_tokens: Room for the question.
        paragraphs: `joined` to one text, or `whole` ones, as many in a window as fit.
    """

    windowing: Windowing
    question_tokens: int
    paragraphs: Literal["joined", "whole"]

    def cut(self, split: QuestionSplit, question: int) -> np.ndarray:
        """A question's windows, as rows of a table."""
        spans = split.paragraphs_of(question)
        if self.paragraphs == "joined":
            spans = [(spans[0][0], spans[-1][1])]
        parts: list[np.ndarray] = []
        for begin, end in spans:
            before = parts[-1] if parts else None
            if before is not None and len(before) == 1 and end - before[0, BEGIN] <= self.windowing.room:
                before[0, END] = end
            elif end > begin:
                parts.append(self.windowing.cut(begin, end))
        table = np.concatenate(parts)
        fresh = (np.arange(len(table)) == 0).astype(np.int64)
        return np.column_stack([table, fresh, np.full(len(table), question)])

    def gather(self, split: QuestionSplit, table_WB5: np.ndarray) -> WindowBatch:
        """Scheduled windows as tensors; targets say what `recur_tune.models.span_loss` has about them."""
        windows, rows, _ = table_WB5.shape
        inputs = np.full((windows, rows, self.windowing.size), split.marks.padding, dtype=np.int64)
        targets = np.full_like(inputs, NOT_SCORED)
        for place in np.ndindex(windows, rows):
            begin, end, _, _, question = table_WB5[place].tolist()
            inputs[place][0] = split.marks.first
            if question >= 0:
                self._fill(split, question, begin, end, inputs[place], targets[place])
        fresh = table_WB5[..., FRESH].astype(bool)
        scored = count_scored(table_WB5)
        return WindowBatch(
            torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(fresh), starts_of(fresh),
            scored, scored, step_losses=count_questions(table_WB5),
        )  # fmt: skip

    def text_begins(self, split: QuestionSplit, question: int) -> int:
        """The position of a window's first token of text."""
        return 2 + min(len(split.asked_of(question)), self.question_tokens)

    def _fill(
        self, split: QuestionSplit, question: int, begin: int, end: int, inputs_T: np.ndarray, targets_T: np.ndarray
    ) -> None:
        text = self.text_begins(split, question)
        inputs_T[1 : text - 1] = split.asked_of(question)[: self.question_tokens]
        inputs_T[text - 1] = split.marks.behind
        inputs_T[text : text + end - begin] = split.tokens[begin:end]
        inputs_T[text + end - begin] = split.marks.behind
        targets_T[0] = kind_of(split, question)
        targets_T[text : text + end - begin] = 0
        for first, last in split.spans_of(question):
            if begin <= first and last < end:
                targets_T[text + first - begin] |= STARTS
                targets_T[text + last - begin] |= ENDS


def count_questions(table_WB5: np.ndarray) -> int:
    """That begin in these windows."""
    return int(((table_WB5[..., FRESH] == 1) & (table_WB5[..., QUESTION] >= 0)).sum())


def kind_of(split: QuestionSplit, question: int) -> int:
    """Of a question's answer: a span, yes or no."""
    [answer] = split.answers[question][:1]
    return _KINDS.get(answer, 0) if answer in split.closed else 0


class QuestionStream(TrainingStream[QuestionSplit]):
    """Training steps of questions: every question is one chain of windows, and rows are packed with them.

    What cannot be learned from is left out, and `remarks` say how much that is.
    """

    def __init__(
        self, split: QuestionSplit, layout: Layout, windows: int, batch: int, seed: int, rank: int = 0, workers: int = 1
    ) -> None:
        self._layout = layout
        self._tables, self.remarks = _usable(split, layout, windows)
        super().__init__(split, windows, batch, seed, rank, workers)

    def _schedule(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(len(self._tables))
        rows = packed_rows([self._tables[at] for at in order], self.windows, IDLE)
        return rows[random.permutation(len(rows))]

    def _gather(self, table_WB5: np.ndarray) -> WindowBatch:
        return self._layout.gather(self.split, table_WB5)

    def _losses(self, table_WB5: np.ndarray) -> int:
        return count_questions(table_WB5)


def question_batches(
    split: QuestionSplit, layout: Layout, batch_size: int, carry_state: bool
) -> Iterator[tuple[WindowBatch, np.ndarray]]:
    """Every question from its first window to its last, `batch_size` of them side by side, one window a step."""
    tables = [layout.cut(split, int(question)) for question in split.chosen]
    units = tables if carry_state else [table[at : at + 1] for table in tables for at in range(len(table))]
    for table_B5 in side_by_side(units, batch_size):
        yield layout.gather(split, table_B5[None]), table_B5


def remarks_on(split: QuestionSplit, layout: Layout) -> list[str]:
    """What of a split is not read as it is, in sentences with numbers."""
    room, chosen = layout.windowing.room, [int(question) for question in split.chosen]
    cut = sum(len(split.asked_of(question)) > layout.question_tokens for question in chosen)
    long = 0
    if layout.paragraphs == "whole":
        long = sum(end - begin > room for question in chosen for begin, end in split.paragraphs_of(question))
    told = (
        (split.unusable, "questions left out, without an answer or without a text"),
        (cut, f"questions cut, with more than {layout.question_tokens} tokens"),
        (long, f"paragraphs cut, with more than the {room} tokens of text in a window"),
    )
    return [f"{what}: {count}." for count, what in told if count]


def _usable(split: QuestionSplit, layout: Layout, windows: int) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """The windows of every question that can be learned from, and what is to be said about the others."""
    tables: list[np.ndarray] = []
    nowhere = at_an_edge = too_long = 0
    for question in map(int, split.chosen):
        table, spans = layout.cut(split, question), split.spans_of(question)
        inside = (spans[:, :1] >= table[:, BEGIN]) & (spans[:, 1:] < table[:, END])
        if kind_of(split, question) == 0 and not len(spans):
            nowhere += 1
        elif kind_of(split, question) == 0 and not inside.any():
            at_an_edge += 1
        elif len(table) > windows:
            too_long += 1
        else:
            tables.append(table)
    told = (
        (nowhere, "questions not trained on, whose answer stands in none of their paragraphs"),
        (at_an_edge, "questions not trained on, whose answer is cut by the edge of a window (more overlap helps)"),
        (too_long, f"questions not trained on, with more than the {windows} windows of a chain"),
    )
    if not tables:
        raise UserError(
            f"corpus: none of its {len(split.chosen)} training questions can be learned from: {nowhere} have an answer "
            f"that stands nowhere, {at_an_edge} one that a window's edge cuts, and {too_long} need more than the "
            f"{windows} windows of a chain."
        )
    return tables, (*remarks_on(split, layout), *(f"{what}: {count}." for count, what in told if count))
