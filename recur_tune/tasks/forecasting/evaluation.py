"""MSE and MAE of forecasts in z-scores, over windows, horizon and columns: Informer's numbers.

Every window counts, those of the last, smaller batch too, which Informer's own test leaves out.

Shape suffixes: B chains, C columns, T positions, H time steps of a forecast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recur_tune.common.precision import Precision
from recur_tune.models.series import SeriesModel
from recur_tune.ops.device import autocast
from recur_tune.tasks.forecasting.series import SeriesSplit
from recur_tune.tasks.forecasting.windows import Layout, lane_batches, lanes
from recur_tune.tasks.reading import read_on
from recur_tune.tasks.seam import GivenState


@dataclass(frozen=True, eq=False)
class ForecastScores:
    """What a model makes of a split.

    Attributes:
        names: Of the columns.
        squared_HC: Sums of squared errors, by time step ahead and column.
        absolute_HC: Sums of absolute errors.
        counts_HC: How many were scored.
        windows: Forecasts, each of all columns.
        example: The last origin's window, truth and forecast of every column.
        remarks: On what is not as it stands in the file.
        seconds: That it took.
    """

    names: tuple[str, ...]
    squared_HC: np.ndarray
    absolute_HC: np.ndarray
    counts_HC: np.ndarray
    windows: int
    example: dict[str, dict[str, list[float | None]]]
    remarks: tuple[str, ...]
    seconds: float

    def metrics(self) -> dict[str, float]:
        """The numbers that people compare."""
        mse = _mean(self.squared_HC, self.counts_HC)
        return {"mse": mse, "mae": _mean(self.absolute_HC, self.counts_HC), "loss": mse}

    def counts(self) -> dict[str, Any]:
        """What was scored, and how fast."""
        steps, columns = self.counts_HC.shape
        speed = f"{self.windows / self.seconds:.0f}"
        return {"windows": self.windows, "horizon": steps, "columns": columns, "windows per second": speed}

    def report(self) -> dict[str, Any]:
        """Everything, as plain values for JSON; an error of which nothing was scored is null."""
        return {
            **self.metrics(),
            "windows": self.windows, "numbers": int(self.counts_HC.sum()),
            "windows_per_second": self.windows / self.seconds, "remarks": list(self.remarks),
            "by_column": dict(zip(self.names, self._by(0), strict=True)), "by_step": self._by(1),
            "example": self.example,
        }  # fmt: skip

    def tables(self) -> dict[str, list[dict[str, str]]]:
        """Errors by column, and by some steps ahead."""
        columns, steps = self._by(0), self._by(1)
        told = sorted({0, *(len(steps) * part // 4 - 1 for part in (1, 2, 3, 4) if len(steps) * part >= 4)})
        return {
            "by column": [{"column": name} | _in_words(one) for name, one in zip(self.names, columns, strict=True)],
            "by step ahead": [{"step": str(step + 1)} | _in_words(steps[step]) for step in told],
        }

    def _by(self, summed: int) -> list[dict[str, float | None]]:
        """Both errors, summed over one axis."""
        counts = self.counts_HC.sum(summed)
        both = {"mse": self.squared_HC.sum(summed), "mae": self.absolute_HC.sum(summed)}
        return [
            {name: float(sums[at] / count) if count else None for name, sums in both.items()}
            for at, count in enumerate(counts)
        ]


@torch.no_grad()
def evaluate_forecasts(
    model: SeriesModel,
    split: SeriesSplit,
    layout: Layout,
    batch_size: int = 16,
    precision: Precision = "auto",
    progress: Callable[[int], None] = lambda rows: None,
    given: GivenState = "own",
) -> ForecastScores:
    """Forecast from every origin of a split; the result does not depend on the batch size.

    Args:
        model: What forecasts.
        split: The series.
        layout: Its windows.
        batch_size: Lanes that are read side by side, each with all columns.
        precision: Of products.
        progress: Hears how many of `split.rows` have been forecast.
        given: The state that a window gets: its lane's own, none, or another lane's.
    """
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    started, state, done, columns = time.perf_counter(), None, 0, len(split.names)
    squared_HC, absolute_HC, counts_HC = (np.zeros((split.horizon, columns)) for _ in range(3))
    windows, (latest, example) = sum(map(len, lanes(split, layout.windowing))), (-1, {})
    carry_state = model.carries_state
    for batch, table_B5 in lane_batches(split, layout, batch_size, carry_state):
        on_device = batch.to(device)
        rows_R5 = table_B5.repeat(columns, axis=0)
        with autocast(device, precision):
            overlap = layout.windowing.overlap // layout.patch
            top_BTK, state = read_on(model, on_device, rows_R5, state, overlap, given, rows_each=columns)
            made_RH = model.forecast_at_end(top_BTK, on_device.inputs_WBT[0])
        made_BCH = made_RH.double().cpu().numpy().reshape(-1, columns, split.horizon)
        there_B = table_B5[:, 4] >= 0
        origin_B = table_B5[there_B, 1]
        made_BHC = made_BCH[there_B].transpose(0, 2, 1)
        true_BHC = split.true_NC[origin_B[:, None] + np.arange(split.horizon)]
        scored_BHC = ~np.isnan(true_BHC)
        error_BHC = np.where(scored_BHC, made_BHC - true_BHC, 0.0)
        squared_HC += (error_BHC**2).sum(0)
        absolute_HC += np.abs(error_BHC).sum(0)
        counts_HC += scored_BHC.sum(0)
        if (last := int(origin_B.max())) > latest:
            at = int(origin_B.argmax())
            latest, example = last, _example(split, layout, last, made_BHC[at])
        done += len(origin_B)
        progress(split.rows * done // windows)
    model.train(was_training)
    return ForecastScores(
        split.names, squared_HC, absolute_HC, counts_HC, windows, example, split.remarks, time.perf_counter() - started
    )


def _example(
    split: SeriesSplit, layout: Layout, origin: int, made_HC: np.ndarray
) -> dict[str, dict[str, list[float | None]]]:
    """A window, what came, and the forecast, by column; None where a value is missing."""
    read_SC, true_HC = split.read_NC[origin - layout.windowing.size : origin], split.true_NC[origin:][: split.horizon]
    parts = {"window": read_SC, "truth": true_HC, "forecast": made_HC}
    return {
        name: {part: [None if np.isnan(one) else float(one) for one in array[:, at]] for part, array in parts.items()}
        for at, name in enumerate(split.names)
    }


def _mean(sums_HC: np.ndarray, counts_HC: np.ndarray) -> float:
    return float(sums_HC.sum() / counts_HC.sum())


def _in_words(errors: dict[str, float | None]) -> dict[str, str]:
    return {name: "-" if error is None else f"{error:.4g}" for name, error in errors.items()}
