"""From windows to tensors: shuffled chains for training, whole documents side by side for evaluation.

Shape suffixes: W windows of a chain, B rows of a batch, T positions of a window.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from recur_tune.common.windowing import BEGIN, END, NOT_SCORED, SCORED_FROM, Windowing
from recur_tune.data.teacher import TeacherRows
from recur_tune.data.tokens import TokenisedSplit

FRESH = 3  # in a table of scheduled windows: 1 where a document (or a chain) begins, so that no state exists yet
_IDLE = np.array([0, 0, 0, 1, -1], dtype=np.int64)  # where a row of the batch has nothing left to read


@dataclass(frozen=True)
class WindowBatch:
    """Windows ready for the model.

    `fresh_WB` marks rows that begin a document. `starts` says the same of each window as a whole, on the
    host, so that the model picks its attention path without asking the device.
    """

    inputs_WBT: torch.Tensor
    targets_WBT: torch.Tensor
    fresh_WB: torch.Tensor
    starts: tuple[Literal["all", "some", "none"], ...]
    scored: int  # targets in this batch that count
    step_scored: int  # the same over all workers' batches of the step
    step_losses: int | None = None  # losses of the step, where there is not one for every target
    teacher: TeacherRows | None = None  # a teacher's predictions, where the loss needs them

    @property
    def mean_over(self) -> int:
        """What a step's mean loss is over."""
        return self.step_scored if self.step_losses is None else self.step_losses

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of its tensors."""
        of_teacher = [] if self.teacher is None else [self.teacher.tokens, self.teacher.log_p]
        return [self.inputs_WBT, self.targets_WBT, self.fresh_WB, *of_teacher]

    def to(self, device: torch.device | str) -> WindowBatch:
        """The same batch on a device; the copy does not wait where memory is pinned."""
        return replace(
            self,
            inputs_WBT=self.inputs_WBT.to(device, non_blocking=True),
            targets_WBT=self.targets_WBT.to(device, non_blocking=True),
            fresh_WB=self.fresh_WB.to(device, non_blocking=True),
            teacher=None if self.teacher is None else self.teacher.to(device),
        )

    def copy(self) -> WindowBatch:
        """The same batch in tensors of its own."""
        return replace(
            self,
            inputs_WBT=self.inputs_WBT.clone(),
            targets_WBT=self.targets_WBT.clone(),
            fresh_WB=self.fresh_WB.clone(),
            teacher=None if self.teacher is None else self.teacher.clone(),
        )


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
    starts = tuple("all" if row.all() else "some" if row.any() else "none" for row in fresh)
    return WindowBatch(
        inputs_WBT=torch.from_numpy(inputs),
        targets_WBT=torch.from_numpy(targets),
        fresh_WB=torch.from_numpy(fresh),
        starts=starts,  # type: ignore[arg-type]
        scored=int(scored.sum()),
        step_scored=int(scored.sum()),
    )


class TrainingStream:
    """An endless, shuffled, resumable stream of training steps.

    Each epoch cuts every document into chains of `windows` windows, packs the shorter chains at documents' ends
    together into full rows, and shuffles the rows. After the first epoch a long document is cut from a random
    phase, so that window boundaries move; one that fits into a chain is always read whole. `batch` rows make a
    step over all workers; worker `rank` of `workers` gets its share of them, so the number of workers changes
    nothing in what a step sees. Where the split has a teacher's predictions, each batch has its own of them, and
    `teacher_weight` is their weight in the loss.

    Attributes:
        remarks: Sentences on what is not read, which training shows.
    """

    remarks: tuple[str, ...] = ()

    def __init__(
        self, split: TokenisedSplit, windowing: Windowing, windows: int, batch: int, seed: int,
        rank: int = 0, workers: int = 1, teacher_weight: float = 0.5,
    ) -> None:  # fmt: skip
        self.teacher_weight = teacher_weight
        self.split, self.windowing, self.windows = split, windowing, windows
        self.batch, self.seed, self.rank, self.workers = batch, seed, rank, workers
        self.epoch, self.row = 0, 0
        self._rows = self._schedule(0)

    def __iter__(self) -> Iterator[WindowBatch]:
        return self

    def __next__(self) -> WindowBatch:
        table_WB4 = np.stack([self._next_row() for _ in range(self.batch)], axis=1)
        share = slice(self.rank * self.batch // self.workers, (self.rank + 1) * self.batch // self.workers)
        mine = self._gather(table_WB4[:, share])
        return replace(
            mine,
            step_scored=int((table_WB4[..., END] - table_WB4[..., SCORED_FROM]).sum()),
            step_losses=self._losses(table_WB4),
        )

    def _gather(self, table_WB4: np.ndarray) -> WindowBatch:
        batch, teacher = gather(self.split.tokens, table_WB4, self.windowing.size), self.split.teacher
        if teacher is None:
            return batch
        index_WBT = np.minimum(table_WB4[..., BEGIN, None] + np.arange(self.windowing.size), len(teacher.log_p_NR) - 1)
        return replace(batch, teacher=teacher.rows(index_WBT, self.teacher_weight))

    def _losses(self, table_WB4: np.ndarray) -> int | None:
        return None

    def _next_row(self) -> np.ndarray:
        if self.row == len(self._rows):
            self.seek(self.epoch + 1, 0)
        self.row += 1
        return self._rows[self.row - 1]

    def seek(self, epoch: int, row: int) -> None:
        """Continue from a position that an earlier stream had reached."""
        if epoch != self.epoch:
            self._rows = self._schedule(epoch)
        self.epoch, self.row = epoch, row

    def _schedule(self, epoch: int) -> np.ndarray:
        """The epoch's rows, [rows, windows, 4], in the order in which they are read."""
        random = np.random.default_rng([self.seed, epoch])
        span = self.windowing.span(self.windows)
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
        table = _marked(self.windowing.cut(0, self.windowing.span(self.windows)))
        rows = np.broadcast_to(table, (len(begin_R), *table.shape)).copy()
        rows[..., :FRESH] += begin_R[:, None, None]
        return rows

    def _packed_rows(self, chains: list[tuple[int, int]]) -> np.ndarray:
        return packed_rows([_marked(self.windowing.cut(begin, end)) for begin, end in chains], self.windows, _IDLE[:4])


def packed_rows(tables: list[np.ndarray], windows: int, idle: np.ndarray) -> np.ndarray:
    """Chains of scheduled windows as rows of so many windows, filled up with idle ones. Best fit: each goes into the
    row whose free space it fills best."""
    rows: list[list[np.ndarray]] = []
    rows_by_space: dict[int, list[int]] = defaultdict(list)
    for table in tables:
        space = next((s for s in range(len(table), windows + 1) if rows_by_space[s]), None)
        if space is None:
            rows.append([table])
            row, space = len(rows) - 1, windows
        else:
            row = rows_by_space[space].pop()
            rows[row].append(table)
        rows_by_space[space - len(table)].append(row)
    packed = np.tile(idle, (len(rows), windows, 1))
    for row, tables_of_row in enumerate(rows):
        joined = np.concatenate(tables_of_row)
        packed[row, : len(joined)] = joined
    return packed


def evaluation_batches(
    split: TokenisedSplit, windowing: Windowing, batch_size: int, carry_state: bool
) -> Iterator[tuple[WindowBatch, np.ndarray]]:
    """Every document from beginning to end, `batch_size` of them side by side, one window a step.

    Yields each one-window batch with its table [B, 5]: the scheduled window and, last, its index in the
    document (-1 where a row has nothing left to read). Without a state the windows of a document do not depend on
    each other, so they are spread over the rows one by one and no row waits for the longest book.
    """
    units: list[np.ndarray] = []
    for begin, end in split.document_inputs():
        table = _marked(windowing.cut(begin, end))
        table = np.concatenate([table, np.arange(len(table))[:, None]], axis=1)
        units.extend([table] if carry_state else table[:, None])
    for table_B5 in side_by_side(units, batch_size):
        yield gather(split.tokens, table_B5[None], windowing.size), table_B5


def side_by_side(units: list[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Chains of scheduled windows in the rows of batches: tables [B, 5] of the windows that are read together."""
    rows = max(1, min(batch_size, len(units)))
    # Longest first onto the row that is free soonest: within 4/3 of the best possible makespan.
    free_at = [(0, row) for row in range(rows)]
    queues: list[list[np.ndarray]] = [[] for _ in range(rows)]
    for unit in sorted(units, key=len, reverse=True):
        windows, row = heapq.heappop(free_at)
        queues[row].append(unit)
        heapq.heappush(free_at, (windows + len(unit), row))
    columns = [np.concatenate(queue) for queue in queues if queue]
    for step in range(max(map(len, columns), default=0)):
        yield np.stack([column[step] if step < len(column) else _IDLE for column in columns])


def _marked(table: np.ndarray) -> np.ndarray:
    """Add the FRESH column to a chain: set in its first window only."""
    fresh = np.zeros((len(table), 1), dtype=np.int64)
    fresh[:1] = 1
    return np.concatenate([table, fresh], axis=1)
