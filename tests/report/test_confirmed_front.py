"""The confirmed front on the page and as a picture, read back from the figures' own data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection

from recur_tune.report.confirmed_front import confirmed_panel, confirmed_picture, draw_confirmation
from recur_tune.report.page import report_page
from recur_tune.report.search_view import read_search
from recur_tune.search.record.confirmation import Confirmation, confirmation
from tests.report import few, make
from tests.search.record import trial
from tests.search.record.test_confirmation import PLAIN, RECURRENT, SPEC, confirmed
from tests.tracking.marks import shape_of


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
        if "customdata" in trace
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


@pytest.fixture
def found() -> Confirmation:
    cheap, dear = trial(0, 10, 1e6, 1e9, params=PLAIN), trial(1, 9, 2e6, 2e9, params=RECURRENT)
    made = confirmation(confirmed((cheap, [10.0, 12.0]), (dear, [10.5, 12.5, 11.5])), SPEC)
    assert made is not None
    return made


def marks_of(axes: Axes) -> dict[float, PathCollection]:
    """The marks by their height."""
    drawn = [one for one in axes.collections if isinstance(one, PathCollection) and len(one.get_offsets())]
    return {y: one for one in drawn for _, y in np.ma.getdata(one.get_offsets()).tolist()}


def test_marks_errors_and_names_are_the_seeds(found: Confirmation) -> None:
    [axes, *_] = confirmed_picture("books", SPEC, found).axes
    bars = [one.get_segments()[0] for one in axes.collections if isinstance(one, LineCollection)]
    spread, marks = found.spread, marks_of(axes)
    assert {(low[0] + high[0]) / 2: (high[1] - low[1]) / 2 for low, high in bars} == {
        1e6: pytest.approx(spread / 2**0.5), 2e6: pytest.approx(spread / 3**0.5),
    }  # fmt: skip
    assert {shape_of(mark): (*np.ma.getdata(mark.get_offsets()).tolist()[0],) for mark in marks.values()} == {
        "circle": (1e6, 11.0), "triangle-up": (2e6, 11.5),
    }  # fmt: skip
    assert {text.get_text() for text in axes.texts} == {"T0", "T1"}
    assert "mean of 2 to 3 seeds" in axes.get_ylabel() and "test split" in axes.get_ylabel()


def test_a_point_within_noise_is_hollow_and_leads_to_the_cheaper_one(found: Confirmation) -> None:
    [axes, *_] = confirmed_picture("books", SPEC, found).axes
    hollow = {y: len(mark.get_facecolors()) == 0 for y, mark in marks_of(axes).items()}
    assert hollow == {11.0: False, 11.5: True}
    [dotted] = [line for line in axes.lines if line.get_linestyle() == ":" and len(line.get_xydata())]
    assert list(dotted.get_xdata()) == [2e6, 1e6] and list(dotted.get_ydata()) == [11.5, 11.0]


def test_colour_is_the_second_cost_and_the_legend_shows_a_kind_filled(found: Confirmation) -> None:
    figure = confirmed_picture("books", SPEC, found)
    axes, bar = figure.axes
    assert bar.get_ylabel() == "peak memory"
    for point in found.points:
        [value] = marks_of(axes)[point.mean].get_array()
        assert 10**value == pytest.approx(point.trial.costs["peak_memory"])
    [legend] = figure.legends
    entries = {one.get_label(): one for one in legend.legend_handles}
    assert list(entries) == ["plain", "pooled", "no better than a cheaper one"]
    assert all(len(entries[kind].get_facecolors()) for kind in ("plain", "pooled")), "although the pooled one is hollow"
    hollow = entries["no better than a cheaper one"]
    assert hollow.get_markerfacecolor() == "white" and hollow.get_linestyle() == ":"


@pytest.mark.parametrize(("more", "axes"), [(1.0, 1), (1.04, 1), (1.06, 2)])
def test_a_second_cost_that_all_points_nearly_share_has_no_colours(more: float, axes: int) -> None:
    alike = [(trial(at, 10 - at, (1 + at) * 1e6, 1e9 * more**at, params=PLAIN), [10.0, 12.0]) for at in range(2)]
    found = confirmation(confirmed(*alike), SPEC)
    assert found is not None and len(confirmed_picture("books", SPEC, found).axes) == axes


def test_it_is_written_as_a_picture(found: Confirmation, tmp_path: Path) -> None:
    written = draw_confirmation("books", SPEC, found, tmp_path / "confirmed.png")
    assert written.stat().st_size > 5000
