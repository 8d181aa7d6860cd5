"""A split of a series in z-scores, and the origins of its forecasts: the first row that each of them is about.

Informer's protocol: mean and standard deviation of every column are the training rows'. Every row of a split from which
a whole horizon fits into it is an origin, and windows reach back into the split before.

Shape suffixes: N rows of the file, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import Split
from recur_tune.data.corpora.registry import open_corpus
from recur_tune.data.corpora.series import SeriesCorpus


@dataclass(frozen=True, eq=False)
class SeriesSplit:
    """A split's rows, and those before it.

    Attributes:
        names: Of the columns.
        read_NC: z-scores, with missing values filled by those before them.
        true_NC: z-scores, NaN where a value is missing.
        begin: The split's first row; rows before it are read, and never forecast.
        horizon: Time steps of a forecast.
        remarks: Sentences on what is not as it stands in the file.
        calendar_NF: What the dates of the rows say, and of a horizon behind them; each feature from -0.5 to 0.5.
        lanes: At most so many of the lanes of origins are scored; None: all.
    """

    names: tuple[str, ...]
    read_NC: np.ndarray
    true_NC: np.ndarray
    begin: int
    horizon: int
    remarks: tuple[str, ...]
    calendar_NF: np.ndarray
    lanes: int | None = None

    @property
    def end(self) -> int:
        """The row behind its last."""
        return len(self.true_NC)

    @property
    def rows(self) -> int:
        """How many it has."""
        return self.end - self.begin

    @cached_property
    def known_before_N(self) -> np.ndarray:
        """How many numbers stand in the rows before each, and in all of them, less those that are missing."""
        return np.concatenate([[0], np.cumsum((~np.isnan(self.true_NC)).sum(1))])

    def sample(self, tokens: int) -> SeriesSplit:
        """About so many time steps of it: some lanes, each through the whole split."""
        return replace(self, lanes=max(1, tokens // self.rows))

    def origins(self, window: int) -> range:
        """The origins of its forecasts, for windows of so many rows."""
        return range(max(self.begin, window), self.end - self.horizon + 1)

    def summary(self) -> dict[str, int]:
        """What `recur-tune data prepare` prints."""
        return {"columns": len(self.names), "rows": self.rows}


def prepare_series(corpus_name: str, split: Split, horizon: int) -> SeriesSplit:
    """The split in z-scores; a constant column is only shifted."""
    corpus = open_corpus(corpus_name)
    assert isinstance(corpus, SeriesCorpus), "the corpus decides the task"
    series, (begin, end) = corpus.series, corpus.borders[split]
    train_NC = series.values[: corpus.borders["train"][1]]
    remarks = list(series.remarks)
    if (empty := np.isnan(train_NC).all(axis=0)).any():
        name = series.names[int(empty.argmax())]
        raise UserError(f"corpus: column {name!r} of {corpus.path} has no number in the training rows; leave it out.")
    mean_C, deviation_C = np.nanmean(train_NC, axis=0), np.nanstd(train_NC, axis=0)
    for name, deviation in zip(series.names, deviation_C, strict=True):
        if not deviation > 0:
            remarks.append(
                f"corpus: column {name!r} of {corpus.path.name} is constant in the training rows; it is shifted to 0 "
                "and not scaled."
            )
    true_NC = (series.values[:end] - mean_C) / np.where(deviation_C > 0, deviation_C, 1.0)
    if np.isnan(true_NC[begin:]).all():
        raise UserError(f"corpus: every value of the {split} split of {corpus.path} is missing; choose other shares.")
    behind = series.dates[end - 1] + series.step * np.arange(1, horizon + 1)
    calendar_NF = _calendar(np.concatenate([series.dates[:end], behind]))
    return SeriesSplit(series.names, _filled(true_NC), true_NC, begin, horizon, tuple(remarks), calendar_NF)


def _calendar(date_N: np.ndarray) -> np.ndarray:
    """Informer's time features: minute, hour, day of the week, of the month and of the year."""
    import pandas as pd  # takes a second to import

    date = pd.DatetimeIndex(date_N)
    parts = (
        (date.minute, 59), (date.hour, 23), (date.dayofweek, 6), (date.day - 1, 30), (date.dayofyear - 1, 365),
    )  # fmt: skip
    return np.stack([part.to_numpy() / most - 0.5 for part, most in parts], axis=1)


def _filled(values_NC: np.ndarray) -> np.ndarray:
    """Missing values as the last one before them; the mean, 0, where there is none."""
    there_NC = ~np.isnan(values_NC)
    if there_NC.all():
        return values_NC
    last_NC = np.maximum.accumulate(np.where(there_NC, np.arange(len(values_NC))[:, None], 0), axis=0)
    return np.nan_to_num(np.take_along_axis(values_NC, last_NC, axis=0))
