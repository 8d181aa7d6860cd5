"""Earlier searches that mislead: the same trials, with the validations of others or mirrored ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.search_replay.earlier import MIRRORED, SHUFFLED, spoiled
from benchmarks.search_replay.recorded import RecordedTable
from recur_tune.search.record.directory import SearchDirectory
from tests.search.record import search

SPREAD = Path(__file__).parents[2] / "benchmarks" / "recorded_spread.csv"


@pytest.fixture
def earlier(tmp_path: Path) -> SearchDirectory:
    directory = SearchDirectory.create(tmp_path, "earlier", search())
    directory.record("reference", values={"perplexity": 30.0})
    for number in range(6):
        directory.record("trial", trial=number, params={"window": 200 + number}, costs={"flops_per_token": number})
        for tokens, end in ((10, None), (20, "complete")):
            validation = {"perplexity": 20.0 + number - tokens / 10}
            directory.record("report", trial=number, tokens=tokens, validation=validation, state=end)
    return directory


def curves(directory: SearchDirectory) -> dict[int, list[float]]:
    trials = directory.state().trials.values()
    assert all(one.state == "complete" and one.params == {"window": 200 + one.number} for one in trials)
    return {one.number: [v.metrics["perplexity"] for v in one.validations] for one in trials}


def test_shuffled_trials_have_each_others_curves(earlier: SearchDirectory, tmp_path: Path) -> None:
    known, shuffled = curves(earlier), curves(spoiled(earlier, tmp_path / "copies", SHUFFLED, seed=1))
    assert sorted(shuffled.values()) == sorted(known.values()) and shuffled != known


def test_mirrored_trials_have_the_same_mean_and_the_other_order(earlier: SearchDirectory, tmp_path: Path) -> None:
    known, mirrored = curves(earlier), curves(spoiled(earlier, tmp_path / "copies", MIRRORED, seed=1))
    ends = {number: curve[-1] for number, curve in mirrored.items()}
    assert sorted(ends, key=ends.__getitem__) == list(reversed(range(6)))
    mean, other = (sum(math.log(value) for curve in one.values() for value in curve) / 12 for one in (known, mirrored))
    assert mean == pytest.approx(other)


def test_a_tables_base_is_a_task_of_its_own() -> None:
    whole, slim = RecordedTable(SPREAD), RecordedTable(SPREAD, "slim")
    assert slim.rows.items() <= whole.rows.items() and len(slim.rows) * 3 == len(whole.rows)
    config = slim.spec().trial_config({"recurrence": "none", "window": 32, "batch": 16, "learning_rate": 4e-3})
    assert config.base == "slim" and slim.history(config) == whole.history(config)
