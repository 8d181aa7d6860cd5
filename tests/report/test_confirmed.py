"""The confirmed front as a figure, read back from its own data."""

from __future__ import annotations

from pathlib import Path

import pytest

from recur_tune.report.confirmed import confirmed_panel
from recur_tune.report.page import report_page
from recur_tune.report.reading import read_search
from tests.report import few, make


def test_a_confirmed_front_has_means_and_errors_where_the_seeds_say(tmp_path: Path) -> None:
    directory = make(tmp_path, "books", few())
    assert confirmed_panel(read_search(directory)).figure is None
    best = read_search(directory).best[:2]
    values = {best[0].number: [90.0, 92.0], best[1].number: [70.0, 72.0]}
    for place, (number, seen) in enumerate(values.items()):
        for seed, value in enumerate(seen):
            own, point = 100 + 10 * place + seed, directory.state().trials[number]
            again = {"repeats": number, "seed": seed, "split": "test"}
            directory.record("trial", trial=own, params=point.params, costs=point.costs, **again)
            directory.record("report", trial=own, tokens=1, state="complete", scores={"test": {"perplexity": value}})
    search = read_search(directory)
    panel = confirmed_panel(search)
    assert panel.figure is not None
    marks = {
        number: (x, y, error)
        for trace in panel.figure["data"]
        for number, x, y, error in zip(
            trace["customdata"], trace["x"], trace["y"], trace["error_y"]["array"], strict=True
        )
    }
    # Two values two apart have a standard deviation of the square root of two, and their mean an error of one.
    assert marks == {
        number: (search.state.trials[number].costs["flops_per_token"], sum(seen) / 2, pytest.approx(1.0))
        for number, seen in values.items()
    }
    assert "confirmed with other seeds" in report_page(search)
