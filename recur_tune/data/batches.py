"""Batches of windows, whichever task reads them: the stream of training steps, and chains side by side for evaluation.

A window is scheduled as a row of a table: BEGIN, END, SCORED_FROM and FRESH, and what else its task needs.

Shape suffixes: W windows of a chain, B rows of a batch, T positions of a window, X columns of a table.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import numpy as np
import torch

from recur_tune.common.windowing import END, SCORED_FROM
from recur_tune.data.teacher import TeacherRows

AnySplit = TypeVar("AnySplit")  # what a split is, only its task knows
Starts = Literal["all", "some", "none"]  # rows of a batch that begin a document

FRESH = 3  # in a table of scheduled windows: 1 where a document (or a chain) begins, so that no state exists yet
# Where a row of the batch has nothing left to read; the last column is a window's in its chain, or a question's number.
IDLE = np.array([0, 0, 0, 1, -1], dtype=np.int64)


@dataclass(frozen=True)
class WindowBatch:
    """Windows ready for the model.

    `fresh_WB` marks rows that begin a document. `starts` says the same of each window as a whole, on the
    host, so that the model picks its attention path without asking the device.
    """

    inputs_WBT: torch.Tensor
    targets_WBT: torch.Tensor
    fresh_WB: torch.Tensor
    starts: tuple[Starts, ...]
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


class TrainingStream(ABC, Generic[AnySplit]):
    """An endless, shuffled, resumable stream of training steps.

    An epoch is rows of `windows` scheduled windows each, which hold one chain or several. `batch` rows make a step over
    all workers; worker `rank` of `workers` gets its share of them, so the number of workers changes nothing in what a
    step sees. How a split becomes rows, and rows become tensors, is each task's own.

    Attributes:
        remarks: Sentences on what is not read, which training shows.
    """

    remarks: tuple[str, ...] = ()

    def __init__(self, split: AnySplit, windows: int, batch: int, seed: int, rank: int = 0, workers: int = 1) -> None:
        self.split, self.windows = split, windows
        self.batch, self.seed, self.rank, self.workers = batch, seed, rank, workers
        self.epoch, self.row = 0, 0
        self._rows = self._schedule(0)

    @abstractmethod
    def _schedule(self, epoch: int) -> np.ndarray:
        """The epoch's rows, [rows, windows, columns of a table], in the order in which they are read."""

    @abstractmethod
    def _gather(self, table_WBX: np.ndarray) -> WindowBatch:
        """Scheduled windows as tensors."""

    def _losses(self, table_WBX: np.ndarray) -> int | None:
        """Losses of scheduled windows; None where there is one for every target."""
        return None

    def __iter__(self) -> Iterator[WindowBatch]:
        return self

    def __next__(self) -> WindowBatch:
        table_WBX = np.stack([self._next_row() for _ in range(self.batch)], axis=1)
        share = slice(self.rank * self.batch // self.workers, (self.rank + 1) * self.batch // self.workers)
        return replace(
            self._gather(table_WBX[:, share]),
            step_scored=count_scored(table_WBX),
            step_losses=self._losses(table_WBX),
        )

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
        yield np.stack([column[step] if step < len(column) else IDLE for column in columns])


def count_scored(table_WBX: np.ndarray) -> int:
    """The positions of scheduled windows that are scored."""
    return int((table_WBX[..., END] - table_WBX[..., SCORED_FROM]).sum())


def starts_of(fresh_WB: np.ndarray) -> tuple[Starts, ...]:
    """Of each window, which rows begin a document there."""
    return tuple("all" if row_B.all() else "some" if row_B.any() else "none" for row_B in fresh_WB)
