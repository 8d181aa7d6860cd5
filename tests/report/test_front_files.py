"""The front as a picture and as a page: what they hold is read back and compared with the trials' own numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib.figure import Figure
from PIL import Image

from recur_tune.recurrences.registry import MARKS
from recur_tune.report.front_files import front_figure, front_page, front_picture, interactive_front
from recur_tune.search.record.front import front
from recur_tune.search.record.objectives import OBJECTIVES as KNOWN
from recur_tune.search.record.state import SearchState
from tests.search.record import OBJECTIVES, state_of, trial
from tests.tracking.marks import (
    CHOICES,
    CIRCLE,
    STATES,
    STOPPED,
    STYLES,
    colour_of,
    crowd,
    drawn_marks,
    ended,
    lines_of_trials,
    look,
    look_of,
    marks_of_page,
    marks_of_picture,
    marks_of_trials,
    one_bad,
    place,
    placed,
    places,
    shape_of,
    shares,
)

TITLE = "a $title_{ of its $own"


def in_every_case(test: Any) -> Any:
    """All states of a search, each with all choices of objectives."""
    choices = pytest.mark.parametrize("objectives", CHOICES, ids="-".join)
    return choices(pytest.mark.parametrize("name", STATES)(test))


@cache
def drawn(name: str, objectives: tuple[str, ...]) -> Figure:
    """A picture for all tests that only look at it."""
    return front_figure(STATES[name], objectives, TITLE)


@cache
def explored(name: str, objectives: tuple[str, ...]) -> go.Figure:
    """The same as a page has it."""
    return interactive_front(STATES[name], objectives, TITLE)


def words_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@in_every_case
def test_every_trial_stands_where_its_numbers_say_in_its_own_form(name: str, objectives: tuple[str, ...]) -> None:
    assert marks_of_picture(drawn(name, objectives)) == marks_of_trials(name, objectives)


@in_every_case
def test_a_line_joins_the_best_of_each_kind(name: str, objectives: tuple[str, ...]) -> None:
    lines = [line for line in drawn(name, objectives).axes[0].lines if len(line.get_xydata())]
    found = {line.get_linestyle(): list(zip(*line.get_data(), strict=True)) for line in lines}
    assert found == lines_of_trials(name, objectives)
    assert all(line.get_drawstyle() == "steps-post" for line in lines), "nothing is promised between two trials"


@in_every_case
def test_what_lies_outside_of_the_axes_is_said(name: str, objectives: tuple[str, ...]) -> None:
    figure = drawn(name, objectives)
    marks = list(marks_of_picture(figure).elements())
    outside = [
        ("stopped" if mark.look == "stopped" else "more", up > 1)
        for mark, (across, up) in zip(marks, shares(figure, marks), strict=True)
        if not (0 <= across <= 1 and 0 <= up <= 1)
    ]
    words = words_of(figure)
    said = {kind: int(count) for word in words for count, kind in re.findall(r"(\d+) (more|stopped)", word)}
    assert said == Counter(kind for kind, _ in outside)
    above = [is_above for kind, is_above in outside if kind == "more"]
    assert any("above" in word for word in words) == (bool(above) and all(above))
    assert len(above) <= 0.25 * len(marks), "it is the exception"
    assert ("no trial has values yet" in words) == (not marks)


@in_every_case
def test_axes_say_what_they_measure_in_numbers_that_differ(name: str, objectives: tuple[str, ...]) -> None:
    axes, (across, up, _) = drawn(name, objectives).axes[0], CHOICES[objectives]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (KNOWN[across].title, KNOWN[up].title)
    assert axes.get_title(loc="left") == TITLE
    for axis, objective in ((axes.xaxis, across), (axes.yaxis, up)):
        low, high = axis.get_view_interval()
        wide = low > 0 and high / low > 5 and axis is axes.xaxis  # with the room around its trials
        assert axis.get_scale() == ("log" if wide else "linear")
        labels = [label.get_text() for label in axis.get_ticklabels()]
        assert labels == [KNOWN[objective].format(tick) for tick in axis.get_ticklocs()]
        assert len(set(labels)) == len(labels)
        assert len(labels) >= 2 or not ended(name, objectives)


@in_every_case
def test_the_legend_has_an_entry_for_each_thing_that_is_there(name: str, objectives: tuple[str, ...]) -> None:
    entries = [entry for legend in drawn(name, objectives).legends for entry in legend.legend_handles]
    found = {entry.get_label(): entry for entry in entries if entry.get_label().strip()}
    trials, titles = ended(name, objectives), {}
    for one in trials:  # also those of a kind that has none at full budget
        title, shape, colour = STYLES[one.params.get("recurrence")]
        titles[title] = shape
        assert CHOICES[objectives][2] or colour_of(found[title]) == colour
    looks = {"front": "on the front", "beaten": "complete, but beaten", "stopped": "not at full budget"}
    as_drawn = {looks[one]: one for one in {look(one, trials, objectives) for one in trials}}
    assert {title: look_of(found[title]) for title in as_drawn} == as_drawn
    titles |= dict.fromkeys(as_drawn, CIRCLE)
    several = len({one.params.get("recurrence") for one in trials}) > 1
    joined = {line.get_linestyle() for line in drawn(name, objectives).axes[0].lines if len(line.get_xydata()) > 1}
    ended_kinds = {one.params.get("recurrence") for one in trials if one.state == "complete"}
    lines = {
        f"best {STYLES[kind][0]} for a cost" if several else "best for a cost": "--" if kind == "none" else "-"
        for kind in ended_kinds
    }
    lines = {title: style for title, style in lines.items() if style in joined}
    assert {title for title in found if title.endswith("for a cost")} == lines.keys()
    assert {title: found[title].get_linestyle() for title in lines} == lines, "as the lines are drawn"
    assert {title: shape_of(found[title]) for title in found.keys() - lines.keys()} == titles


def test_the_legend_of_many_kinds_is_short_and_inside_the_picture() -> None:
    kinds = [trial(at, 30.0 + at, 1e8, 2e9, "paused", {"recurrence": kind}) for at, kind in enumerate(MARKS)]
    ends = [
        trial(50 + at, 29.0 + at, flops, 2e9, params={"recurrence": "none"}) for at, flops in enumerate([2e8, 1e8, 3e8])
    ]
    figure = front_figure(state_of(*kinds, *ends), OBJECTIVES[:2], TITLE)
    [legend] = figure.legends
    words = [text.get_text() for text in legend.get_texts() if text.get_text().strip()]
    assert len(words) == len(MARKS) + 4 and {mark.word for mark in MARKS.values()} < set(words)
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= 1280 and box.height < 90, "pixels, of 1280 and 800: three lines"
    assert box.y1 < figure.axes[0].xaxis.label.get_window_extent().y0, "below the axes"


@in_every_case
def test_a_second_cost_has_a_colour_bar(name: str, objectives: tuple[str, ...]) -> None:
    _, *bars = drawn(name, objectives).axes
    complete = [one for one in drawn_marks(drawn(name, objectives)) if look_of(one) != "stopped"]
    if CHOICES[objectives][2] and complete:
        [bar] = bars
        assert bar.get_ylabel() == "peak memory"
        for collection in complete:
            low, high = collection.norm.vmin, collection.norm.vmax
            assert (low, high) == pytest.approx(bar.get_ylim()) and collection.get_cmap().name == "viridis"
            assert all(low < colour < high for colour in collection.get_array())
    else:
        assert not bars
        colours = {(shape_of(one), tuple(face[:3])) for one in complete for face in one.get_facecolors()}
        assert len(colours) == len(dict(colours)) == len({colour for _, colour in colours})


@in_every_case
def test_names_stand_beside_the_front_s_marks(name: str, objectives: tuple[str, ...]) -> None:
    figure, trials = drawn(name, objectives), ended(name, objectives)
    axes, lines = figure.axes[0], [point for line in lines_of_trials(name, objectives).values() for point in line]
    names = {text.get_text(): text for text in axes.texts if re.fullmatch(r"T\d+", text.get_text())}
    best = {one.name: place(one, objectives) for one in trials if look(one, trials, objectives) == "front"}
    seen = {one: best[one] for one in best if axes.viewLim.contains(*best[one])}
    assert {one for one in seen if seen[one] in lines} <= names.keys() <= seen.keys(), "in a crowd some go without"
    for one, text in names.items():
        box, mark = text.get_window_extent(), axes.transData.transform(best[one])
        assert np.abs(mark - np.clip(mark, box.min, box.max)).max() < 70, "pixels, of 1280 and 800"


@pytest.mark.parametrize("state", [STATES["many"], STATES["one bad"], crowd()], ids=["many", "one bad", "crowd"])
def test_names_cover_neither_marks_nor_each_other(state: SearchState) -> None:
    figure = front_figure(state, OBJECTIVES[:2], TITLE)
    axes = figure.axes[0]
    names = [text.get_window_extent() for text in axes.texts if re.fullmatch(r"T\d+", text.get_text())]
    best = [place(one, OBJECTIVES[:2]) for one in front(state.trials.values(), OBJECTIVES[:2])]
    assert len(names) == sum(axes.viewLim.contains(*point) for point in best), "here is room for all"
    assert all(axes.bbox.count_contains(name.corners()) == 4 for name in names)
    assert not any(one.overlaps(other) for one, other in combinations(names, 2))
    for marks in drawn_marks(figure):
        radius = np.sqrt(marks.get_sizes()[0]) / 2 * figure.dpi / 72
        for at in axes.transData.transform(places(marks)):
            assert all(np.abs(at - np.clip(at, name.min, name.max)).max() >= radius for name in names)


def in_sight(state: SearchState) -> set[str]:
    """The trials within the axes."""
    view = front_figure(state, OBJECTIVES[:2], TITLE).axes[0].viewLim
    found = (one for one in state.trials.values() if one.state in ("complete", *STOPPED))
    return {one.name for one in found if view.contains(*place(one, OBJECTIVES[:2]))}


def test_what_stopped_early_is_in_sight_unless_it_is_far_off() -> None:
    assert in_sight(STATES["stopped far off"]) == {"T8", "T9", "T4", "T5"}
    assert "4 stopped early lie outside" in words_of(drawn("stopped far off", OBJECTIVES))


def test_half_of_all_trials_are_in_sight_even_where_few_came_to_their_end() -> None:
    stopped = [trial(number, 30.0 + 3 * number, 1e8, 2e9, "paused") for number in range(1, 8)]
    bad = trial(9, 1e9, 1e8, 2e9, "pruned")
    near = {"T0", "T1", "T2", "T3", "T4"}
    assert in_sight(state_of(trial(0, 30.0, 1e8, 2e9), *stopped, bad)) == near, "T4 is the median of nine"
    assert in_sight(state_of(*stopped, bad)) == {one.name for one in stopped}, "and where none did, all but the bad"


def test_one_bad_trial_does_not_flatten_the_others() -> None:
    def height(state: SearchState) -> float:
        """The part of the axis that the plain trials take."""
        figure = front_figure(state, OBJECTIVES[:2], TITLE)
        plain = [mark for mark in marks_of_picture(figure) if mark.shape == CIRCLE]
        return float(np.ptp(shares(figure, plain)[:, 1]))

    good = state_of(*(one for one in one_bad().trials.values() if one.number != 9))
    assert height(one_bad()) == pytest.approx(height(good)) and height(good) > 0.8
    assert "↑ 1 more trial lies above" in words_of(drawn("one bad", OBJECTIVES))


def test_a_picture_is_a_whole_png_and_replaces_the_one_before(tmp_path: Path) -> None:
    path, shown = tmp_path / "new" / "front.png", []
    for name in ("none", "many"):
        front_picture(STATES[name], OBJECTIVES, path, TITLE)
        with Image.open(path) as image:
            assert (image.format, image.size) == ("PNG", (1280, 800))
            shown.append(image.convert("RGB").tobytes())  # raises where something is missing
        assert [found.name for found in path.parent.iterdir()] == ["front.png"], "nothing half-written stays"
    assert shown[0] != shown[1]


@in_every_case
def test_a_page_has_every_trial_where_the_picture_has_it(name: str, objectives: tuple[str, ...]) -> None:
    figure, axes = explored(name, objectives), drawn(name, objectives).axes[0]
    assert marks_of_page(figure.data) == marks_of_trials(name, objectives)
    lines = {
        trace.line.dash: list(zip(trace.x, trace.y, strict=True))
        for trace in figure.data
        if trace.mode == "lines" and trace.x != (None,)
    }
    legend = [entry.get_label() for legend in axes.figure.legends for entry in legend.legend_handles]
    assert [trace.name for trace in figure.data if trace.showlegend is not False] == [
        one for one in legend if one.strip()
    ]
    dashes = {"--": "dash", "-": "solid"}
    assert lines == {dashes[style]: points for style, points in lines_of_trials(name, objectives).items()}
    for ours, theirs, ends in (
        (figure.layout.xaxis, axes.xaxis, axes.get_xlim()),
        (figure.layout.yaxis, axes.yaxis, axes.get_ylim()),
    ):
        if ended(name, objectives):
            assert ours.type == theirs.get_scale()
            assert (np.power(10, ours.range) if ours.type == "log" else ours.range) == pytest.approx(ends)
            assert ours.ticktext == tuple(label.get_text() for label in theirs.get_ticklabels())


@in_every_case
def test_on_a_page_every_mark_has_its_trial_s_name(name: str, objectives: tuple[str, ...]) -> None:
    traces = placed(explored(name, objectives).data)
    found = [(hover, (x, y)) for one in traces for hover, x, y in zip(one.hovertext, one.x, one.y, strict=True)]
    trials = ended(name, objectives)
    assert sorted((hover.split("<br>")[0], point) for hover, point in found) == sorted(
        (f"<b>{one.name}</b> {one.state}{', here after 1k tokens' * (one.state in STOPPED)}", place(one, objectives))
        for one in trials
    )
    written = [(text, (x, y)) for one in traces for text, x, y in zip(one.text or (), one.x, one.y, strict=False)]
    best = [one for one in trials if look(one, trials, objectives) == "front"]
    assert sorted(written) == sorted((one.name, place(one, objectives)) for one in best)


def test_a_page_is_one_file_that_needs_no_network(tmp_path: Path) -> None:
    front_page(STATES["many"], OBJECTIVES, tmp_path / "front.html", "<b>mine</b>")
    assert [found.name for found in tmp_path.iterdir()] == ["front.html"]
    page = (tmp_path / "front.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)\s*=", page)
    assert len(page) < 6_000_000
    assert "<title>&lt;b&gt;mine&lt;/b&gt;</title>" in page
    plotted = page[page.index("[", page.rindex("Plotly.newPlot")) :]
    traces = go.Figure(json.JSONDecoder().raw_decode(plotted)[0]).data
    assert marks_of_page(traces) == marks_of_trials("many", OBJECTIVES)


def test_a_trial_tells_all_about_itself_under_the_pointer() -> None:
    params = {"recurrence": "pooled", "learning_rate": 0.000123456, "base": "<i>"}
    seen = state_of(trial(7, 30.5, 1e8, 2**31, params=params), trial(8, 40, 1e8, 2**31, "paused"))
    seen.trials[7].role = "paper"
    best, paused = sorted(placed(interactive_front(seen, OBJECTIVES, TITLE).data), key=lambda trace: trace.customdata)
    assert best.hovertext == (
        "<b>T7</b> complete (paper)<br>perplexity per word: 30.5<br>FLOPs/token: 100M<br>peak memory: 2 GiB<br>"
        "recurrence = pooled<br>learning_rate = 0.0001235<br>base = &lt;i&gt;",
    )
    assert paused.hovertext[0].startswith("<b>T8</b> paused, here after 1k tokens<br>perplexity per word: 40<br>")


def test_drawing_libraries_are_imported_late_and_without_pyplot(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from recur_tune.report.front_files import front_picture\n"
        "from recur_tune.search.record.state import SearchState\n"
        "assert not {'matplotlib', 'plotly'} & sys.modules.keys()\n"
        "front_picture(SearchState(), ['perplexity', 'peak_memory'], Path(sys.argv[1]), 'x')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "front.png")], check=True)
