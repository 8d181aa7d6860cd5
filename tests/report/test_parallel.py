"""Parameters and objectives side by side, against what each trial has."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from recur_tune.report.figures.style import GREY, Panel
from recur_tune.report.parallel import parallel_panel
from recur_tune.report.search_view import SearchView, read_search
from recur_tune.search.record.state import Event
from tests.report import SPACE, begun, few, make, many, opening, validated


@pytest.fixture
def books(tmp_path: Path) -> SearchView:
    return read_search(make(tmp_path, events=few()))


def axes_of(panel: Panel) -> dict[str, dict[str, Any]]:
    assert panel.figure is not None, panel.caption
    [trace] = panel.figure["data"]
    return {axis["label"]: axis for axis in trace["dimensions"]}


def words_of(axis: dict[str, Any]) -> list[str]:
    """What stands at the place where each line passes; nothing where that is between two ticks."""
    ticks = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
    return [ticks.get(value, "") for value in axis["values"]]


def ran(**params: list[Any]) -> list[Event]:
    """Trials at full budget with these parameters."""
    events, count = opening(), len(next(iter(params.values())))
    for number in range(count):
        own = {name: values[number] for name, values in params.items() if values[number] is not None}
        events += begun(number, 100, own, 4e5 + number, 2.0**25 + number)
        events.append(validated(number, 101, 4000, 50.0 + number, "complete"))
    return events


def test_lines_pass_every_parameter_and_objective(books: SearchView) -> None:
    axes = axes_of(parallel_panel(books))
    assert list(axes) == [
        "window", "overlap", "recurrence", "l_ins", "width", "perplexity per word", "FLOPs/token", "peak memory",
        "state",
    ], "neither the batch nor the learning rate was free"  # fmt: skip
    assert all(len(axis["values"]) == 6 for axis in axes.values()), "every trial that ran"
    assert axes["window"]["ticktext"] == ["16", "32", "64"]


def test_trials_that_did_not_reach_their_full_budget_are_there_and_marked(books: SearchView) -> None:
    panel = parallel_panel(books)
    axes, [trace] = axes_of(panel), (panel.figure or {})["data"]
    states = [trial.state for trial in (books.state.trials[number] for number in (4, 5, 0, 1, 2, 3))]
    assert words_of(axes["state"]) == states and states.count("complete") == 4
    ranks, scale = trace["line"]["color"], dict(trace["line"]["colorscale"])
    assert [rank < 0 for rank in ranks] == [state != "complete" for state in states]
    assert scale[0.0] == GREY and min(ranks[2:]) == 0, "half of the scale is grey, below what a rank can be"
    assert words_of(axes["perplexity per word"])[1] == "–", "it failed before it was validated"
    assert "The 2 in grey have no value at full budget" in panel.caption


def test_what_a_trial_does_not_have_is_missing_on_its_axis(books: SearchView) -> None:
    axes = axes_of(parallel_panel(books))
    kinds = words_of(axes["recurrence"])
    for name in ("l_ins", "width"):
        assert [word == "–" for word in words_of(axes[name])] == [kind == "none" for kind in kinds]
        assert axes[name]["range"][0] == min(axes[name]["values"]), "in sight"


def test_a_plain_trial_has_no_width_though_the_sampler_decided_one(tmp_path: Path) -> None:
    events = ran(recurrence=["none", "pooled", "pooled"], width=[20, 30, 60], window=[16, 16, 32])
    space = {"base": "tiny", "recurrence": ["none", "pooled"], "width": {"from": 20, "to": 60}, "window": [16, 32]}
    axis = axes_of(parallel_panel(read_search(make(tmp_path, events=events, space=space))))["width"]
    assert words_of(axis) == ["–", "30", "60"]


@pytest.mark.parametrize(
    "rates", [{"from": 1e-4, "to": 1e-2, "log": True}, {"from": 1e-4, "to": 1e-2}, [1e-4, 1e-3, 1e-2]]
)
def test_a_learning_rate_s_axis_is_logarithmic_however_its_space_is(tmp_path: Path, rates: Any) -> None:
    events = ran(window=[16, 32, 16], learning_rate=[1e-4, 1e-3, 1e-2])
    space = {"base": "tiny", "window": [16, 32], "learning_rate": rates}
    axis = axes_of(parallel_panel(read_search(make(tmp_path, events=events, space=space))))["learning_rate"]
    assert axis["values"] == pytest.approx([-4, -3, -2]) and axis["ticktext"] == ["0.0001", "0.001", "0.01"]


def test_a_range_below_a_choice_is_as_logarithmic_as_it_says(tmp_path: Path) -> None:
    widths = [100, 101, 120, 150, 160, 180, 200, 220, 250]  # more than a choice, and not far apart
    events = ran(recurrence=["pooled"] * 9 + ["none"], width=[*widths, None], window=[16, 32] * 5)
    axis = axes_of(parallel_panel(read_search(make(tmp_path, events=events, space=SPACE))))["width"]
    assert axis["values"][:9] == pytest.approx([math.log10(width) for width in widths])
    assert words_of(axis)[9] == "–" and axis["values"][9] < 2
    assert axis["ticktext"] == ["–", "100", "200"], "round numbers"


def test_on_paper_it_is_made_of_lines_with_everything_that_the_screen_has(tmp_path: Path) -> None:
    panel = parallel_panel(read_search(make(tmp_path, events=many(60))))
    axes, drawn = axes_of(panel), panel.printed
    assert drawn is not None
    words = [note["text"].replace("<br>", " ").replace("_ ", "_") for note in drawn["layout"]["annotations"]]
    assert set(axes) <= set(words) and all(set(axis.get("ticktext", ())) <= set(words) for axis in axes.values())
    passing: list[tuple[float, ...]] = []
    for trace in drawn["data"]:
        assert trace["type"] == "scatter" and (trace["line"]["dash"] == "dot") == (trace["line"]["color"] == GREY)
        size = len(axes) + 1
        passing += [tuple(trace["y"][at : at + size - 1]) for at in range(0, len(trace["y"]), size)]
    wanted = zip(*([(value - axis["range"][0]) / (axis["range"][1] - axis["range"][0]) for value in axis["values"]]
                   for axis in axes.values()), strict=True)  # fmt: skip
    assert sorted(passing) == sorted(wanted)
    assert all(-1e-9 <= height <= 1 + 1e-9 for line in passing for height in line)


def test_one_trial_is_compared_with_nothing(tmp_path: Path) -> None:
    panel = parallel_panel(read_search(make(tmp_path, events=ran(window=[16]))))
    assert panel.figure is None and "two trials" in panel.caption
