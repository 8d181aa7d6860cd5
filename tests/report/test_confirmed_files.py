"""The picture of a confirmed front has its marks where the seeds' means are, read back from the figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer

from recur_tune.report.confirmed_files import confirmed_figure, draw_confirmation
from recur_tune.search.record.confirmation import Confirmation, confirmation
from tests.search.record import trial
from tests.search.record.test_confirmation import PLAIN, RECURRENT, SPEC, confirmed


@pytest.fixture
def found() -> Confirmation:
    cheap, dear = trial(0, 10, 1e6, 1e9, params=PLAIN), trial(1, 9, 2e6, 1e9, params=RECURRENT)
    made = confirmation(confirmed((cheap, [10.0, 12.0]), (dear, [10.5, 12.5, 11.5])), SPEC)
    assert made is not None
    return made


def test_marks_errors_and_names_are_the_seeds(found: Confirmation) -> None:
    [axes, *_] = confirmed_figure("books", SPEC, found).axes
    bars = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    marks = {}
    for container, point in zip(bars, found.points, strict=True):
        line, _, (bar,) = container.lines
        [[x, low], [_, high]] = bar.get_segments()[0]
        marks[point.trial.name] = (x, line.get_ydata()[0], (high - low) / 2, line.get_marker())
    spread = found.spread
    assert marks == {
        "T0": (1e6, 11.0, pytest.approx(spread / 2**0.5), "o"),
        "T1": (2e6, 11.5, pytest.approx(spread / 3**0.5), "^"),
    }
    assert {text.get_text() for text in axes.texts} == {"T0", "T1"}
    assert "mean of 2 to 3 seeds" in axes.get_ylabel() and "test split" in axes.get_ylabel()


def test_a_point_within_noise_is_hollow_and_leads_to_the_cheaper_one(found: Confirmation) -> None:
    [axes, *_] = confirmed_figure("books", SPEC, found).axes
    faces = {
        point.trial.name: container.lines[0].get_markerfacecolor()
        for container, point in zip(axes.containers, found.points, strict=True)
    }
    assert faces["T1"] == "white" != faces["T0"]
    [dotted] = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert list(dotted.get_xdata()) == [2e6, 1e6] and list(dotted.get_ydata()) == [11.5, 11.0]


def test_it_is_written_as_a_picture(found: Confirmation, tmp_path: Path) -> None:
    written = draw_confirmation("books", SPEC, found, tmp_path / "confirmed.png")
    assert written.stat().st_size > 5000
