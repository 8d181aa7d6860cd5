"""From a text to windows: shuffled chains for training, whole documents side by side for evaluation.

Shape suffixes: W windows of a chain, B rows of a batch, T positions of a window, R rows of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch

from recur_tune.common.windowing import BEGIN, END, NOT_SCORED, SCORED_FROM, Windowing
from recur_tune.data.batches import FRESH, IDLE, TrainingStream, WindowBatch, packed_rows, side_by_side, starts_of
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.tasks.language_modelling.spec import TEACHER_WEIGHT


def gather(tokens: np.ndarray, table_WB4: np.ndarray, size: int) -> WindowBatch:
    """Read scheduled windows out of a token array; an empty slot (BEGIN == END) becomes unscored padding."""
    position_T = np.arange(size)
    begin, end = table_WB4[..., BEGIN, None], table_WB4[..., END, None]
    index_WBT = begin + position_T
    inside = index_WBT < end
    scored = inside & (index_WBT >= table_WB4[..., SCORED_FROM, None])
    inputs = np.where(inside, tokens[np.where(inside, index_WBT, 0)].astype(np.int64), 0)
    targets = np.where(scored, tokens[np.where(scored, index_WBT + 1, 0)].astype(np.int64), NOT_SCORED)
    fresh = table_WB4[..., FRESH].astype(bool)
    return WindowBatch(
        inputs_WBT=torch.from_numpy(inputs),
        targets_WBT=torch.from_numpy(targets),
        fresh_WB=torch.from_numpy(fresh),
        starts=starts_of(fresh),
        scored=int(scored.sum()),
        step_scored=int(scored.sum()),
    )


class TextStream(TrainingStream[TokenisedSplit]):
    """Training steps of a text.

    Each epoch cuts every document into chains of `windows` windows, packs the shorter chains at documents' ends
    together into full rows, and shuffles the rows. After the first epoch a long document is cut from a random
    phase, so that window boundaries move; one that fits into a chain is always read whole. Where the split has a
    teacher's predictions, each batch has its own of them, and `teacher_weight` is their weight in the loss.
    """

    def __init__(
        self, split: TokenisedSplit, windowing: Windowing, windows: int, batch: int, seed: int,
        rank: int = 0, workers: int = 1, teacher_weight: float = TEACHER_WEIGHT,
    ) -> None:  # fmt: skip
        self._windowing, self._teacher_weight = windowing, teacher_weight
        super().__init__(split, windows, batch, seed, rank, workers)

    def _schedule(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, epoch])
        span = self._windowing.span(self.windows)
        full_chains, short_chains = [], []
        for begin, end in self.split.document_inputs():
            fits = end - begin <= span
            first = begin if epoch == 0 or fits else begin + int(random.integers(span))
            if first > begin:
                short_chains.append((begin, first))
            whole = (end - first) // span
            full_chains.append(first + span * np.arange(whole, dtype=np.int64))
            if first + whole * span < end:
                short_chains.append((first + whole * span, end))
        random.shuffle(short_chains)
        rows = np.concatenate([self._full_rows(np.concatenate(full_chains)), self._packed_rows(short_chains)])
        return rows[random.permutation(len(rows))]

    def _full_rows(self, begin_R: np.ndarray) -> np.ndarray:
        table = _marked(self._windowing.cut(0, self._windowing.span(self.windows)))
        rows = np.broadcast_to(table, (len(begin_R), *table.shape)).copy()
        rows[..., :FRESH] += begin_R[:, None, None]
        return rows

    def _packed_rows(self, chains: list[tuple[int, int]]) -> np.ndarray:
        return packed_rows(_cut(self._windowing, chains), self.windows, IDLE[:4])

    def _gather(self, table_WB4: np.ndarray) -> WindowBatch:
        batch, teacher = gather(self.split.tokens, table_WB4, self._windowing.size), self.split.teacher
        if teacher is None:
            return batch
        index_WBT = np.minimum(table_WB4[..., BEGIN, None] + np.arange(self._windowing.size), len(teacher.log_p_NR) - 1)
        return replace(batch, teacher=teacher.rows(index_WBT, self._teacher_weight))


def evaluation_batches(
    split: TokenisedSplit, windowing: Windowing, batch_size: int, carry_state: bool
) -> Iterator[tuple[WindowBatch, np.ndarray]]:
    """Every document from beginning to end, `batch_size` of them side by side, one window a step.

    Yields each one-window batch with its table [B, 5]: the scheduled window and, last, its index in the
    document (-1 where a row has nothing left to read). Without a state the windows of a document do not depend on
    each other, so they are spread over the rows one by one and no row waits for the longest book.
    """
    units: list[np.ndarray] = []
    for table in _cut(windowing, split.document_inputs()):
        table = np.concatenate([table, np.arange(len(table))[:, None]], axis=1)
        units.extend([table] if carry_state else table[:, None])
    for table_B5 in side_by_side(units, batch_size):
        yield gather(split.tokens, table_B5[None], windowing.size), table_B5


def _cut(windowing: Windowing, stretches: Iterable[tuple[int, int]]) -> list[np.ndarray]:
    """The marked windows of each stretch of inputs [begin, end). All of one length are cut alike, and a text of many
    short documents has few lengths."""
    of_length: dict[int, np.ndarray] = {}
    tables = []
    for begin, end in stretches:
        if (length := end - begin) not in of_length:
            of_length[length] = _marked(windowing.cut(0, length))
        table = of_length[length].copy()
        table[:, :FRESH] += begin
        tables.append(table)
    return tables


def _marked(table: np.ndarray) -> np.ndarray:
    """Add the FRESH column to a chain: set in its first window only."""
    fresh = np.zeros((len(table), 1), dtype=np.int64)
    fresh[:1] = 1
    return np.concatenate([table, fresh], axis=1)
