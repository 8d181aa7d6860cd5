"""Series made on the spot, as CSV files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

HOUR = np.timedelta64(1, "h")
BEGIN = np.datetime64("2016-07-01T00:00:00", "s")


def waves(rows: int, columns: int = 2, seed: int = 0) -> np.ndarray:
    """Daily waves with noise, each column of its own size and level."""
    random, hour_N = np.random.default_rng(seed), np.arange(rows)
    phase_C = np.arange(columns)
    wave_NC = np.sin(2 * np.pi * (hour_N[:, None] + 5 * phase_C) / 24) * (1 + phase_C) + 10 * phase_C
    return wave_NC + 0.1 * random.standard_normal((rows, columns))


def write_series(file: Path, values_NC: np.ndarray, step: np.timedelta64 = HOUR) -> Path:
    """A CSV file of these values, evenly spaced; NaN is left empty."""
    table = pd.DataFrame(values_NC, columns=[f"c{number}" for number in range(values_NC.shape[1])])
    table.insert(0, "date", BEGIN + np.arange(len(values_NC)) * step)
    table.to_csv(file, index=False)
    return file
