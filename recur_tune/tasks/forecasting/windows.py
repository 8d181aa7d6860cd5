"""From a series to windows: chains of consecutive windows for training, lanes of origins for evaluation.

Forecasts are scored from every origin of a split, row after row. Windows that move on by S rows visit every S-th origin
only. So there are S lanes, each a chain of windows in chronological order, and together they visit each origin once,
with the state of its own past.

Shape suffixes: W windows of a chain, B chains, C columns, R rows of a batch (chains times columns), S time steps of a
window, T positions, H time steps of a forecast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from recur_tune.common.errors import UserError
from recur_tune.common.windowing import BEGIN, END, SCORED_FROM, Windowing
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
from recur_tune.tasks.forecasting.series import SeriesSplit


@dataclass(frozen=True)
class Layout:
    """How a series becomes windows.

    Attributes:
        windowing: In time steps.
        patch: Time steps of a position.
        with_calendar: Whether a chain has rows for the calendar behind its columns, and all of its rows the horizon
            behind the window, in which columns are zero.
    """

    windowing: Windowing
    patch: int
    with_calendar: bool = False

    def chain(self, first: int, windows: int) -> np.ndarray:
        """So many windows from a row on, as a table (BEGIN, END, SCORED_FROM, FRESH)."""
        table = self.windowing.cut(first, first + self.windowing.span(windows))
        return np.column_stack([table, np.arange(windows) == 0])

    def gather(self, split: SeriesSplit, table_WB4: np.ndarray) -> WindowBatch:
        """Scheduled windows as tensors; a window that is not there (BEGIN == END) has zeros and no targets."""
        size, horizon = self.windowing.size, split.horizon
        begin_WB, there_WB = table_WB4[..., BEGIN], table_WB4[..., BEGIN] < table_WB4[..., END]
        values_WBSC = split.read_NC[begin_WB[..., None] + np.arange(size)] * there_WB[..., None, None]
        origin_WBT, is_scored_WBT = self._origins(table_WB4)
        row_WBTH = origin_WBT[..., None] + np.arange(horizon)
        scored_WBTH = is_scored_WBT[..., None] & (row_WBTH < split.end)
        target_WBTHC = split.true_NC[np.minimum(row_WBTH, split.end - 1)]
        target_WBTHC[~scored_WBTH] = np.nan
        if self.with_calendar:
            ahead_WBS = begin_WB[..., None] + np.arange(size + horizon)
            calendar_WBSF = split.calendar_NF[ahead_WBS] * there_WB[..., None, None]
            room = [(0, 0), (0, 0), (0, horizon), (0, 0)]
            values_WBSC = np.concatenate([np.pad(values_WBSC, room), calendar_WBSF], axis=-1)
        fresh_WB = table_WB4[..., FRESH].astype(bool)
        scored = count_scored(table_WB4)
        return WindowBatch(
            inputs_WBT=_columns_as_rows(values_WBSC, -1),
            targets_WBT=_columns_as_rows(target_WBTHC, -1),
            fresh_WB=torch.from_numpy(fresh_WB.repeat(values_WBSC.shape[-1], axis=1)),
            starts=starts_of(fresh_WB),
            scored=scored,
            step_scored=scored,
            step_losses=self.scored_numbers(split, table_WB4),
        )

    def scored_numbers(self, split: SeriesSplit, table_WB4: np.ndarray) -> int:
        """Numbers that are forecast from scheduled windows and are not missing."""
        origin_WBT, is_scored_WBT = self._origins(table_WB4)
        first_WBT, end_WBT = (
            split.known_before_N[np.minimum(origin_WBT + ahead, split.end)] for ahead in (0, split.horizon)
        )
        return int(((end_WBT - first_WBT) * is_scored_WBT).sum())

    def _origins(self, table_WB4: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the forecasts from every position begin, and whether the position is scored, [W, B, T]."""
        origin_WBT = table_WB4[..., BEGIN, None] + np.arange(self.patch, self.windowing.size + 1, self.patch)
        is_there_WB = table_WB4[..., BEGIN] < table_WB4[..., END]
        return origin_WBT, is_there_WB[..., None] & (origin_WBT > table_WB4[..., SCORED_FROM, None])


def _columns_as_rows(array: np.ndarray, axis: int) -> torch.Tensor:
    """[W, B, ..., C] as [W, B C, ...], in single precision."""
    moved = np.moveaxis(array, axis, 2)
    return torch.from_numpy(moved.reshape(len(moved), -1, *moved.shape[3:]).astype(np.float32))


class SeriesStream(TrainingStream[SeriesSplit]):
    """Training steps: chains of consecutive windows, shuffled. Each epoch cuts the series from another phase.

    A forecast may reach behind the training rows; what lies there is not scored. A chain without a number to score is
    left out, since the mean over a step of such chains would be over nothing.
    """

    def __init__(
        self, split: SeriesSplit, layout: Layout, windows: int, batch: int, seed: int, rank: int, workers: int
    ) -> None:
        self._layout, self.remarks = layout, split.remarks
        super().__init__(split, windows, batch, seed, rank, workers)

    def _schedule(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, epoch])
        span, end = self._layout.windowing.span(self.windows), self.split.end
        first = int(random.integers(span)) if epoch else 0
        chains = [(0, first), *((begin, min(begin + span, end)) for begin in range(first, end, span))]
        tables = [
            table
            for begin, stop in chains
            if (windows := self._whole(stop - begin)) > 0
            and self._layout.scored_numbers(self.split, (table := self._layout.chain(begin, windows))[:, None])
        ]
        if not tables:
            raise UserError(
                f"window: {self._layout.windowing.size} time steps are behind none of the training rows that have a "
                "number to forecast; choose fewer, or give a longer series."
            )
        rows = packed_rows(tables, self.windows, IDLE[:4])
        return rows[random.permutation(len(rows))]

    def _whole(self, rows: int) -> int:
        """Whole windows in so many rows."""
        windowing = self._layout.windowing
        return 1 + (rows - windowing.size) // windowing.stride if rows >= windowing.size else 0

    def _gather(self, table_WB4: np.ndarray) -> WindowBatch:
        return self._layout.gather(self.split, table_WB4)

    def _losses(self, table_WB4: np.ndarray) -> int:
        return self._layout.scored_numbers(self.split, table_WB4)


def lanes(split: SeriesSplit, windowing: Windowing) -> list[np.ndarray]:
    """The lanes of a split's origins, or those of them that are scored."""
    origins, stride = split.origins(windowing.size), windowing.stride
    count = min(stride, len(origins))
    chosen = np.arange(count)
    if split.lanes is not None and split.lanes < count:
        chosen = (np.arange(split.lanes) * count) // split.lanes
    return [np.array(origins[first::stride], dtype=np.int64) for first in chosen]


def lane_batches(
    split: SeriesSplit, layout: Layout, batch_size: int, carry_state: bool
) -> Iterator[tuple[WindowBatch, np.ndarray]]:
    """Windows whose ends are the origins of a split, `batch_size` side by side, with their tables [B, 5]; the last
    number is the window's in its lane, -1 where nothing is left to read."""
    units: list[np.ndarray] = []
    for origin_L in lanes(split, layout.windowing):
        begin_L = origin_L - layout.windowing.size
        number_L = np.arange(len(origin_L))
        table_L5 = np.stack([begin_L, origin_L, begin_L, number_L == 0, number_L], axis=1)
        units.extend([table_L5] if carry_state else table_L5[:, None])
    for table_B5 in side_by_side(units, batch_size):
        yield layout.gather(split, table_B5[None, :, :4]), table_B5
