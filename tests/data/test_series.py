"""Series: a CSV file's rows, Informer's splits, and what is wrong with a file in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.registry import open_corpus
from recur_tune.data.corpora.series import SeriesCorpus
from recur_tune.tasks.forecasting.series import prepare_series
from tests.series import waves, write_series

MINUTES = np.timedelta64(15, "m")


def opened(name: str) -> SeriesCorpus:
    corpus = open_corpus(name)
    assert isinstance(corpus, SeriesCorpus)
    return corpus


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_series(tmp_path_factory.mktemp("series") / "small.csv", waves(100))


def test_the_splits_are_informers_by_row_number(tmp_path: Path) -> None:
    """data_loader.py of Informer2020: ETT by months of 30 days, Weather by shares, rounded down from both ends."""
    hourly = write_series(tmp_path / "ETTh1.csv", np.zeros((17_420, 1)) + np.arange(17_420)[:, None])
    assert opened(f"ett:{hourly}").borders == {
        "train": (0, 12 * 30 * 24),
        "validation": (12 * 30 * 24, 16 * 30 * 24),
        "test": (16 * 30 * 24, 20 * 30 * 24),
    }
    quarters = write_series(tmp_path / "ETTm1.csv", np.arange(57_700.0)[:, None], MINUTES)
    assert list(opened(f"ett:{quarters}").borders.values()) == [(0, 34_560), (34_560, 46_080), (46_080, 57_600)]
    weather = write_series(tmp_path / "WTH.csv", np.arange(35_064.0)[:, None])
    borders = opened(f"weather:{weather}").borders
    assert [end - begin for begin, end in borders.values()] == [24_544, 3_508, 7_012]
    assert borders["test"][1] == 35_064


def test_origins_are_every_row_from_which_a_horizon_fits(tmp_path: Path) -> None:
    """Informer's windows: each set begins a window before its first row, and has N - H + 1 of them."""
    file = write_series(tmp_path / "ETTh1.csv", np.arange(14_400.0)[:, None])
    test = prepare_series(f"ett:{file}", "test", horizon=24)
    assert len(test.origins(96)) == 2_880 - 24 + 1 == 2_857
    assert (test.origins(96)[0], test.origins(96)[-1] + 24) == (11_520, 14_400)
    train = prepare_series(f"ett:{file}", "train", horizon=24)
    assert len(train.origins(96)) == 8_640 - 96 - 24 + 1


def test_ones_own_file_is_split_by_shares(small: Path) -> None:
    assert list(opened(f"series:{small}").borders.values()) == [(0, 70), (70, 80), (80, 100)]
    assert list(opened(f"series:{small},train=0.5,test=0.3").borders.values()) == [(0, 50), (50, 70), (70, 100)]


def test_scores_are_by_the_training_rows(small: Path) -> None:
    values, test = waves(100), prepare_series(f"series:{small}", "test", horizon=4)
    expected = (values - values[:70].mean(0)) / values[:70].std(0)
    np.testing.assert_allclose(test.true_NC, expected, atol=1e-12)
    np.testing.assert_array_equal(test.read_NC, test.true_NC)
    assert (test.begin, test.end, test.remarks) == (80, 100, ())


def test_missing_values_are_counted_read_as_the_last_one_and_never_scored(tmp_path: Path) -> None:
    values = waves(100)
    values[0, 0] = values[40:43, 1] = np.nan
    split = prepare_series(f"series:{write_series(tmp_path / 'a.csv', values)}", "train", horizon=4)
    assert split.remarks == ("corpus: values missing in a.csv, filled for reading and never scored: 4.",)
    assert np.isnan(split.true_NC).sum() == 4 and not np.isnan(split.read_NC).any()
    assert split.read_NC[0, 0] == 0.0, "the mean, before which nothing is known"
    assert (split.read_NC[40:43, 1] == split.true_NC[39, 1]).all()


def test_a_gap_in_the_dates_becomes_missing_rows(tmp_path: Path) -> None:
    lines = write_series(tmp_path / "a.csv", waves(100)).read_text().splitlines()
    (tmp_path / "a.csv").write_text("\n".join([*lines[:31], *lines[33:61], *lines[62:]]) + "\n")
    series = opened(f"series:{tmp_path / 'a.csv'}").series
    assert series.remarks == ("corpus: dates left out in a.csv, each now a row of missing values: 3, in 2 gaps.",)
    assert np.flatnonzero(np.isnan(series.values).all(1)).tolist() == [30, 31, 60]
    np.testing.assert_allclose(np.delete(series.values, [30, 31, 60], 0), np.delete(waves(100), [30, 31, 60], 0))


def test_uneven_dates_are_told(tmp_path: Path) -> None:
    lines = write_series(tmp_path / "a.csv", waves(50)).read_text().replace("2016-07-02 06:00", "2016-07-02 06:20")
    (tmp_path / "a.csv").write_text(lines)
    [remark] = opened(f"series:{tmp_path / 'a.csv'}").series.remarks
    assert "2 of 49 steps between the dates of a.csv are not the usual 3600 seconds" in remark


def test_a_constant_column_is_told_and_not_scaled(tmp_path: Path) -> None:
    values = waves(100)
    values[:, 1] = 7.0
    split = prepare_series(f"series:{write_series(tmp_path / 'a.csv', values)}", "test", horizon=4)
    [remark] = split.remarks
    assert "column 'c1' of a.csv is constant in the training rows" in remark
    assert (split.true_NC[:, 1] == 0).all()


def test_a_column_of_words_is_left_out_and_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("date,place,c\n" + "".join(f"2020-01-{n:02},here,{n}\n" for n in range(1, 31)))
    series = opened(f"series:{tmp_path / 'a.csv'}").series
    assert series.names == ("c",) and series.remarks == (
        "corpus: column 'place' of a.csv has no number and is left out.",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("date,a\n2020-01-01,x\n2020-01-02,y\n", "has no column of numbers beside its dates"),
        ("date\n2020-01-01\n2020-01-02\n", "has no column of numbers beside its dates"),
        (
            "date,a\n2020-01-02,1\n2020-01-01,2\n",
            r"row 3 of .*a.csv \(2020-01-01\) is not later than the row before it",
        ),
        ("date,a\n2020-01-01,1\n2020-01-01,2\n", "each date once"),
        ("date,a\n2020-01-01,1\nsoon,2\n", "row 3 of .*a.csv begins with 'soon', which is no date"),
        ("date,a\n2020-01-01,1\n2020-01-02,many\n", "row 3 of .*a.csv has 'many' in column 'a', which is no number"),
        ("a,b\n1,2\n3,4\n", "the first column of .*a.csv, 'a', has numbers and no dates"),
        ("date,a\n2020-01-01,1\n", "has 1 row; a series needs two or more"),
        ("", "is no CSV file"),
    ],
)
def test_what_is_no_series_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=sentence):
        opened(f"series:{tmp_path / 'a.csv'}").look("train")


def test_a_corpus_of_series_that_is_misspelt_is_one_sentence(small: Path) -> None:
    for name, sentence in (
        ("ett", "ett: names no file; write ett:FILE.csv"),
        (f"ett:{small}", "the splits of ett take 14400 rows, and this file has 100; give it as series:FILE"),
        (f"series:{small},train=2", "does not understand 'train=2'"),
        (f"series:{small},train=0.9", "leave no row of .* for validation"),
    ):
        with pytest.raises(UserError, match=sentence):
            opened(name).look("train")
    with pytest.raises(UserError, match="holds numbers, and this needs texts"):
        [*opened(f"series:{small}").documents("train")]


def test_a_column_without_a_number_to_train_on_is_one_sentence(tmp_path: Path) -> None:
    values = waves(100)
    values[:80, 1] = np.nan
    with pytest.raises(UserError, match=r"column 'c1' of .* has no number in the training rows"):
        prepare_series(f"series:{write_series(tmp_path / 'a.csv', values)}", "test", horizon=4)
