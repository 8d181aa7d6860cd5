"""Series: numbers that were measured one time step after the other, in a CSV file with a column of dates.

Splits are stretches of rows, in their order: Informer's for its own data sets (`ett`, `weather`), shares for any other
file (`series`). A date that is left out becomes a row of missing values, so that a row is a time step everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from recur_tune.common.errors import UserError
from recur_tune.common.files import reading
from recur_tune.common.units import counted
from recur_tune.data.corpora.document import Corpus, Document, Extent, Split
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.text_files import read_bytes

Borders = Mapping[Split, tuple[int, int]]  # the first row of each split, and the one behind its last
Splitting = Callable[["Series"], Borders]

_MONTH = 30 * 24  # hours, as Informer counts them
_ETT_MONTHS = (12, 4, 4)
_SHARES = {"train": 0.7, "test": 0.2}
_HOUR = np.timedelta64(1, "h")


@dataclass(frozen=True, eq=False)
class Series:
    """The columns of a file.

    Attributes:
        dates: Of every row, evenly spaced unless a remark says otherwise.
        names: Of the columns.
        values: [rows, columns]; NaN where one is missing.
        step: From a row to the next, as most are.
        remarks: Sentences on what was not taken as it stands in the file.
    """

    dates: np.ndarray
    names: tuple[str, ...]
    values: np.ndarray
    step: np.timedelta64
    remarks: tuple[str, ...]


class SeriesCorpus(Corpus):
    """A file of series, and how its rows are split."""

    def __init__(self, name: str, where: str, borders: Splitting) -> None:
        self.name, self.path, self._borders = name, Path(where).expanduser(), borders
        if not where or not self.path.is_file():
            raise UserError(f"corpus: {name}:{where} names no file; write {name}:FILE.csv, a file with a date column.")

    @property
    def series(self) -> Series:
        """The file's columns; a file that holds none is refused."""
        with reading(self.path):
            told = self.path.stat()
        return _read(self.path, told.st_mtime_ns, told.st_size)

    @property
    def borders(self) -> Borders:
        """The rows of each split."""
        return self._borders(self.series)

    def look(self, split: Split) -> Extent:
        """Read the whole file: it is small."""
        begin, end = self.borders[split]
        if end <= begin:
            raise UserError(f"corpus: the {split} split of {self.name}:{self.path} has no row; give it a larger share.")
        share = self.path.stat().st_size * (end - begin) // len(self.series.values)
        return Extent(files=1, bytes=share, tokens=end - begin)

    def documents(self, split: Split) -> Iterator[Document]:
        """There are none."""
        raise UserError(f"corpus: {self.name} holds numbers, and this needs texts; give one such as text:DIR.")

    def fingerprint(self, split: Split) -> str:
        """A digest of the file, and the rows that count."""
        return f"{hashlib.sha256(read_bytes(self.path)).hexdigest()} {self.name} {self.borders[split]}"


def _months(name: str) -> Splitting:
    def borders(series: Series) -> Borders:
        """Months of 30 days, counted from the first row."""
        each = _HOUR / series.step
        if each not in (1, 4):
            raise UserError(
                f"corpus: {name} is hourly or quarter-hourly, and this file is not; give it as series:FILE."
            )
        train, validation, test = (months * _MONTH * int(each) for months in _ETT_MONTHS)
        if len(series.values) < (needed := train + validation + test):
            raise UserError(
                f"corpus: the splits of {name} take {needed} rows, and this file has {len(series.values)}; give it as "
                "series:FILE, which is split by shares."
            )
        return _in_order(train, validation, needed)

    return borders


def _shares(train: float, test: float) -> Splitting:
    def borders(series: Series) -> Borders:
        """Shares of all rows, rounded down; validation gets what is left."""
        rows = len(series.values)
        for_train = int(rows * train)
        return _in_order(for_train, rows - for_train - int(rows * test), rows)

    return borders


def _in_order(train: int, validation: int, end: int) -> Borders:
    return {"train": (0, train), "validation": (train, train + validation), "test": (train + validation, end)}


def _open_own(where: str) -> SeriesCorpus:
    """`series:FILE.csv,train=0.6,test=0.2`: validation gets the rest."""
    file, *options = where.split(",")
    shares = dict(_SHARES)
    for option in options:
        share, _, number = option.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if share not in shares or not 0 < value < 1:
            raise UserError(
                f"corpus: series does not understand {option!r}; write series:FILE.csv,train=0.7,test=0.2, shares of "
                "the rows between 0 and 1."
            )
        shares[share] = value
    if sum(shares.values()) >= 1:
        raise UserError(
            f"corpus: train={shares['train']:g} and test={shares['test']:g} leave no row of {file} for validation; "
            "choose shares with a sum below 1."
        )
    return SeriesCorpus("series", file, _shares(**shares))


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> Series:
    """Parsed once for all that ask, until the file changes."""
    import pandas as pd  # takes a second to import

    with reading(path):
        try:
            table = pd.read_csv(path, index_col=False, skipinitialspace=True)
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(f"corpus: {path} is no CSV file ({reason}).") from None
    remarks: list[str] = []
    dates = _dates(table, path)
    columns = {str(name): _numbers(table[name], path, remarks) for name in table.columns[1:]}
    columns = {name: numbers for name, numbers in columns.items() if numbers is not None}
    if not columns:
        raise UserError(f"corpus: {path} has no column of numbers beside its dates; give a CSV with one or more.")
    values = np.stack([numbers for numbers in columns.values() if numbers is not None], axis=1)
    missing = int(np.isnan(values).sum())
    if missing:
        remarks.append(f"corpus: values missing in {path.name}, filled for reading and never scored: {missing}.")
    dates, values, step = _evenly(dates, values, path, remarks)
    return Series(dates, tuple(columns), values, step, tuple(remarks))


def _dates(table: object, path: Path) -> np.ndarray:
    """The first column, which has to rise from row to row."""
    import pandas as pd

    assert isinstance(table, pd.DataFrame)
    if len(table) < 2 or not len(table.columns):
        raise UserError(f"corpus: {path} has {counted(len(table), 'row')}; a series needs two or more.")
    name, first = table.columns[0], table.iloc[:, 0]
    if pd.api.types.is_numeric_dtype(first):
        raise UserError(f"corpus: the first column of {path}, {name!r}, has numbers and no dates; put the dates first.")
    dates = pd.to_datetime(first, errors="coerce").to_numpy(dtype="datetime64[s]")
    if (wrong := np.flatnonzero(np.isnat(dates))).size:
        raise UserError(f"corpus: row {wrong[0] + 2} of {path} begins with {first[wrong[0]]!r}, which is no date.")
    if (back := np.flatnonzero(np.diff(dates) <= np.timedelta64(0, "s"))).size:
        at = back[0] + 1
        raise UserError(
            f"corpus: row {at + 2} of {path} ({first[at]}) is not later than the row before it ({first[at - 1]}); sort "
            "its rows by date, each date once."
        )
    return dates


def _numbers(column: object, path: Path, remarks: list[str]) -> np.ndarray | None:
    """A column as numbers, NaN where one is missing; None where it has none at all."""
    import pandas as pd

    assert isinstance(column, pd.Series)
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, copy=True)
    numbers[~np.isfinite(numbers)] = np.nan
    if np.isnan(numbers).all():
        remarks.append(f"corpus: column {column.name!r} of {path.name} has no number and is left out.")
        return None
    if not pd.api.types.is_numeric_dtype(column):
        words = np.isnan(numbers) & column.notna().to_numpy() & (column.astype(str).str.strip() != "").to_numpy()
        if (wrong := np.flatnonzero(words)).size:
            raise UserError(
                f"corpus: row {wrong[0] + 2} of {path} has {column[wrong[0]]!r} in column {column.name!r}, which is no "
                "number; leave a missing value empty."
            )
    return numbers


def _evenly(
    dates: np.ndarray, values: np.ndarray, path: Path, remarks: list[str]
) -> tuple[np.ndarray, np.ndarray, np.timedelta64]:
    """The rows with one for every date that is left out, where all dates are whole steps apart."""
    apart = np.diff(dates)
    kinds, counts = np.unique(apart, return_counts=True)
    step = kinds[counts.argmax()]
    if len(kinds) == 1:
        return dates, values, step
    whole = (apart % step == np.timedelta64(0, "s")).all()
    row = np.concatenate([[0], np.cumsum(apart // step)]) if whole else None
    if row is None or row[-1] >= 2 * len(dates):
        uneven = int((apart != step).sum())
        remarks.append(
            f"corpus: {uneven} of {len(apart)} steps between the dates of {path.name} are not the usual {step}; its "
            "rows are taken as if they were."
        )
        return dates, values, step
    filled = np.full((row[-1] + 1, values.shape[1]), np.nan)
    filled[row] = values
    gaps, left_out = int((apart != step).sum()), len(filled) - len(values)
    remarks.append(
        f"corpus: dates left out in {path.name}, each now a row of missing values: {left_out}, in "
        f"{counted(gaps, 'gap')}."
    )
    return dates[0] + step * np.arange(len(filled)), filled, step


def _kind(name: str, summary: str, open_: Callable[[str], Corpus]) -> CorpusKind:
    return CorpusKind(name=name, summary=summary, needs="a file", open=open_, task="forecasting")


ETT = _kind(
    "ett",
    "electricity transformers' oil temperature and loads (ETTh1, ETTm1, ...) in Informer's splits, ett:FILE.csv",
    lambda where: SeriesCorpus("ett", where, _months("ett")),
)
WEATHER = _kind(
    "weather",
    "Informer's weather data (WTH.csv), 70/10/20 % of the rows, weather:FILE.csv",
    lambda where: SeriesCorpus("weather", where, _shares(**_SHARES)),
)
SERIES = _kind(
    "series", "your own numbers over time, a CSV file with dates first: series:FILE.csv,train=0.7,test=0.2", _open_own
)
