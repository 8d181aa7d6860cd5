"""Forecasting: the code of the task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.precision import Precision
from recur_tune.common.windowing import Windowing
from recur_tune.data.corpora.document import Split
from recur_tune.models.series import SeriesModel
from recur_tune.tasks.forecasting.evaluation import ForecastScores, evaluate_forecasts
from recur_tune.tasks.forecasting.series import SeriesSplit, prepare_series
from recur_tune.tasks.forecasting.spec import ForecastingSpec, patch_of
from recur_tune.tasks.forecasting.windows import Layout, SeriesStream
from recur_tune.tasks.seam import GivenState


class Forecasting:
    """Its splits are stretches of a series."""

    def __init__(self, **fields: Any) -> None:
        self._spec = ForecastingSpec(**fields)

    def prepare(
        self, corpus: str, split: Split, tokenizer: None, progress: Callable[[int], None] = lambda rows: None
    ) -> SeriesSplit:
        """A split in z-scores; numbers need no tokenizer."""
        return prepare_series(corpus, split, self._spec.horizon)

    def check(self, model: SeriesModel, split: SeriesSplit) -> None:
        """The body is made for a number of columns, and its forecasts have a length."""
        for what, own, given in (
            ("columns", model.config.columns, len(split.names)), ("horizon", model.config.horizon, split.horizon),
        ):  # fmt: skip
            if own != given:
                raise UserError(f"{what}: the model was made for {own}, and the series is read with {given}.")

    def sample(self, split: SeriesSplit, tokens: int) -> SeriesSplit:
        """Every so many origins, in chronological order through the whole split."""
        return split.sample(tokens)

    def size(self, split: SeriesSplit) -> int:
        """Its time steps."""
        return split.rows

    def stream(
        self, split: SeriesSplit, windowing: Windowing, windows: int, batch: int, seed: int, rank: int, workers: int
    ) -> SeriesStream:
        """Shuffled chains of windows."""
        return SeriesStream(split, self._layout(windowing), windows, batch, seed, rank, workers)

    def evaluate(
        self,
        model: SeriesModel,
        split: SeriesSplit,
        windowing: Windowing,
        batch_size: int = 16,
        precision: Precision = "auto",
        progress: Callable[[int], None] = lambda rows: None,
        given: GivenState = "own",
    ) -> ForecastScores:
        """MSE and MAE."""
        self.check(model, split)
        layout = self._layout(windowing)
        if layout.patch != model.config.patch:
            raise UserError(f"window: the model reads windows of {model.config.patch} time steps; leave it out.")
        in_patches = self._spec.body == "patches"
        if in_patches and (windowing.size % layout.patch or windowing.overlap % layout.patch):
            raise UserError(
                f"window: {windowing.size} time steps, {windowing.overlap} of them read again, are no whole number of "
                f"patches of {layout.patch}; choose multiples of that."
            )
        return evaluate_forecasts(model, split, layout, batch_size, precision, progress, given)

    def _layout(self, windowing: Windowing) -> Layout:
        return Layout(windowing, patch_of(self._spec, windowing.size), with_calendar=self._spec.body == "informer")
