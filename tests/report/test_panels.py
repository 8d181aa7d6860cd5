"""What the figures show, against what the search says."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import plotly.graph_objects as go
import pytest

from recur_tune.common.parsing import parse
from recur_tune.config.fields import train_command
from recur_tune.config.trial import TrialConfig
from recur_tune.report.figures.style import Panel, colour_axis, usual_top
from recur_tune.report.page import picture_panels, report_panels
from recur_tune.report.panels import best_by_window, front_panel, windows_panel
from recur_tune.report.progress import curves_panel, spread, time_unit, timeline_panel, volume_panel
from recur_tune.report.search_view import SearchView, read_search
from recur_tune.search.record.front import front_rows
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.state import TrialRecord
from tests.report import begun, confirmed, few, make, many, opening, params_of, validated


@pytest.fixture
def books(tmp_path: Path) -> SearchView:
    return read_search(make(tmp_path, events=few()))


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> SearchView:
    return read_search(make(tmp_path_factory.mktemp("big"), events=many(300)))


def traces(panel: Panel) -> dict[str, dict[str, Any]]:
    assert panel.figure is not None, panel.caption
    return {trace.get("name", trace["type"]): trace for trace in panel.figure["data"]}


def only_trial(tmp_path: Path, *events: Any) -> SearchView:
    return read_search(make(tmp_path, events=[*opening(), *begun(0, 100, params_of(), 4e5, 2.0**25), *events]))


def cases(tmp_path: Path) -> dict[str, SearchView]:
    """Searches of which little is known."""
    nan = [validated(0, 101, 1000, math.nan), validated(0, 102, 4000, math.nan, "complete")]
    lone = [validated(0, 101, 1000, 80.0), validated(0, 102, 4000, 70.0, "complete")]
    logs = {
        "waiting": [], "running": [validated(0, 101, 1000, 80.0)], "nan": nan, "one": lone,
        "pruned": [validated(0, 101, 1000, 80.0, "pruned")],
        "nan on the way": [validated(0, 101, 1000, math.nan), *lone[1:]],
        "beyond the reference": [validated(0, 101, 4000, 1000.0, "complete")],
    }  # fmt: skip
    return {name: only_trial(tmp_path / name.replace(" ", "-"), *log) for name, log in logs.items()}


def test_plotly_knows_every_word_of_every_figure(books: SearchView, big: SearchView, tmp_path: Path) -> None:
    for search in (books, big, *cases(tmp_path).values()):
        for panel in report_panels(search):
            assert panel.caption and panel.title
            if panel.figure is not None:
                for figure in (panel.figure, panel.printed or panel.figure):
                    drawn = go.Figure(figure)  # raises on a property that does not exist
                    assert len(drawn.data) > 0 and panel.height > 0, "no blank figure"


def test_every_trial_with_values_is_a_mark_in_its_place_and_kind(books: SearchView, big: SearchView) -> None:
    for search in (books, big):
        marks = [
            (number, (x, y), name)
            for name, trace in traces(front_panel(search)).items()
            for number, x, y in zip(trace.get("customdata", ()), trace["x"], trace["y"], strict=False)
        ]
        best = {row["number"] for row in front_rows(search.state, search.spec.objectives)}

        def name(trial: TrialRecord, best: set[int] = best) -> str:
            kind = {"none": "plain", "pooled": "pooled"}[trial.params["recurrence"]]
            ending = "on the front" if trial.number in best else "beaten"
            return f"{kind}, {ending if trial.state == 'complete' else 'not at full budget'}"

        validated = [trial for trial in search.state.trials.values() if trial.validations]
        assert sorted(marks) == [
            (trial.number, (trial.costs["flops_per_token"], trial.metrics["perplexity"]), name(trial))
            for trial in validated
        ]


def test_kinds_differ_in_shape_and_the_front_by_its_edge(books: SearchView) -> None:
    found = {name: trace["marker"] for name, trace in traces(front_panel(books)).items() if "marker" in trace}
    for kind, symbol in (("plain", "circle"), ("pooled", "triangle-up")):
        best = found[f"{kind}, on the front"]
        assert (best["symbol"], best["line"]["color"]) == (symbol, "black")
    behind = found["pooled, beaten"]
    assert behind["symbol"] == "triangle-up" and behind["line"]["color"] != "black" and behind["opacity"] < 0.5
    assert found["pooled, not at full budget"]["symbol"] == "triangle-up-open", "T4 was pruned and is recurrent"


def test_trials_on_their_way_are_in_sight_and_counted_where_they_are_not(books: SearchView, tmp_path: Path) -> None:
    def ends(search: SearchView) -> tuple[float, float]:
        panel = front_panel(search)
        assert panel.figure is not None
        return tuple(panel.figure["layout"]["yaxis"]["range"])

    assert books.state.trials[4].metrics["perplexity"] == 95, "from 50 to 70 the others reach"
    assert ends(books)[1] < 90 and "1 more lies outside" in front_panel(books).caption
    events = few()
    for event in events:
        if event.get("trial") == 4 and "validation" in event:
            event["validation"]["perplexity"] = 85.0
    near = read_search(make(tmp_path / "near", events=events))
    assert ends(near)[1] > 85 and "lies outside" not in front_panel(near).caption


def test_a_plain_trial_tells_nothing_of_a_recurrence(tmp_path: Path) -> None:
    events = opening()
    for number, kind in enumerate(("none", "pooled")):
        events += begun(number, 100, {"recurrence": kind, "width": 77, "window": 16}, 4e5, 2.0**25)
    space = {"base": "tiny", "recurrence": ["none", "pooled"], "width": [77, 99], "window": [16, 32], "l_ins": 1}
    search = read_search(make(tmp_path, events=events, space=space))
    plain, recurrent = search.state.trials.values()
    assert "width" not in search.about(plain) and "width = 77" in search.about(recurrent)
    assert "--width" not in search.command(plain) and "--l-ins" not in search.command(plain)
    assert "--l-ins 1 --width 77" in search.command(recurrent)


def test_one_bad_trial_does_not_flatten_the_others() -> None:
    assert usual_top([30, 31, 32, 33, 1e9]) < 100
    assert usual_top([10, 19]) == 20


def test_a_narrow_colour_bar_has_few_ticks_with_room_between_them() -> None:
    bar = colour_axis(OBJECTIVES["peak_memory"], [20.0 * 2**20, 80.0 * 2**20])
    places, ends = bar["colorbar"]["tickvals"], (bar["cmin"], bar["cmax"])
    assert len(places) >= 2 and len(places) == len(bar["colorbar"]["ticktext"])
    assert min(later - sooner for sooner, later in pairwise(places)) >= 0.2 * (ends[1] - ends[0])


def test_each_window_has_its_best_of_either_kind(books: SearchView) -> None:
    found = traces(windows_panel(books))
    assert (found["plain, best"]["x"], found["plain, best"]["customdata"]) == ([16, 64], [2, 0])
    assert (found["pooled, best"]["x"], found["pooled, best"]["y"]) == ([32, 64], [55.0, 50.0])


def test_the_best_by_window_are_the_minima(big: SearchView) -> None:
    for trial in best_by_window(big, big.complete):
        window = big.configs[trial.number].window
        rivals = [other for other in big.complete if big.configs[other.number].window == window]
        assert trial.value("perplexity") == min(other.value("perplexity") or 0 for other in rivals)


def test_the_hypervolume_has_a_step_for_every_trial(books: SearchView) -> None:
    found = traces(volume_panel(books))
    line, marks = found["hypervolume"], found["a trial ends"]
    assert line["line"]["shape"] == "hv" and line["x"] == [0, 10, 12, 18, 20, 30], "seconds"
    assert line["y"][:2] == [0, pytest.approx((1 - 60 / 100) * (1 - 4e5 / 1e6) * (1 - 2**25 / 2**27))]
    assert line["y"][-1] == pytest.approx(books.hypervolume)
    assert (marks["customdata"], marks["x"], marks["y"]) == ([0, 1, 2, 3], line["x"][1:-1], line["y"][1:-1])


def test_curves_are_the_front_s_validations_with_rungs_and_stops(books: SearchView) -> None:
    panel = curves_panel(books)
    found = traces(panel)
    assert (found["T0"]["x"], found["T0"]["y"]) == ([1000, 4000], [90.0, 60.0])
    assert "T3" not in found, "it is not on the front"
    assert (found["pruned here"]["x"], found["pruned here"]["y"]) == ([1000], [95.0])
    assert panel.figure is not None
    shapes = panel.figure["layout"]["shapes"]
    assert [line["x0"] for line in shapes] == [1000, 2000, 4000]
    assert all(line["line"] == found["rung"]["line"] for line in shapes), "the legend has what the lines mean"


def test_curves_that_end_together_have_names_apart(tmp_path: Path) -> None:
    events, perplexities = opening(), (50.0, 50.1, 70.0)
    for number, perplexity in enumerate(perplexities):  # the less they cost the worse they are: all are on the front
        events += begun(number, 100, params_of(), 6e5 - 1e5 * number, 2.0**25)
        events.append(validated(number, 101, 4000, perplexity, "complete"))
    panel = curves_panel(read_search(make(tmp_path, events=events)))
    found = traces(panel)
    [names] = [trace for trace in found.values() if trace["mode"] == "text"]
    assert names["text"] == ["T0", "T1", "T2"] and names["y"] == sorted(names["y"])
    assert panel.figure is not None
    bottom, top = panel.figure["layout"]["yaxis"]["range"]
    assert all(later - sooner > 0.05 * (top - bottom) for sooner, later in pairwise(names["y"]))
    ends = [(found[f"to {name}"]["x"][0], found[f"to {name}"]["y"]) for name in names["text"]]
    assert ends == [(4000, [end, height]) for end, height in zip(perplexities, names["y"], strict=True)]


@hypothesis.given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_heights_are_spread_no_more_than_they_must_be(values: list[float]) -> None:
    values, gap = sorted(values), 0.125
    heights = np.array(spread(values, 0, 1, gap))
    assert (np.diff(heights) >= gap - 1e-9).all() and heights.min() >= -1e-9 and heights.max() <= 1 + 1e-9
    # The nearest of all that are allowed, by another way: no step towards any of them comes nearer to the values.
    for seed in range(20):
        steps = np.random.default_rng(seed).dirichlet(np.ones(len(values) + 1)) * (1 - gap * (len(values) - 1))
        other = np.cumsum(steps[:-1]) + gap * np.arange(len(values))
        assert (heights - values) @ (other - heights) >= -1e-9


def test_rungs_that_lie_close_leave_out_the_earlier_one_s_name(tmp_path: Path) -> None:
    search = read_search(make(tmp_path, events=few(), budget={"tokens": 4000, "trials": 9, "rungs": 6}))
    panel = curves_panel(search)
    assert panel.figure is not None
    words = panel.figure["layout"]["annotations"]
    assert words[-1]["text"] == "budget" and len(words) < len(search.spec.budget.rung_tokens) == 6
    assert all(later["x"] - sooner["x"] > 500 for sooner, later in pairwise(words))


def test_the_timeline_has_a_bar_for_every_span(books: SearchView) -> None:
    found = traces(timeline_panel(books))
    whole = found["full budget"]
    bars = sorted(zip(whole["customdata"], whole["y"], whole["base"], whole["x"], strict=True))
    assert bars == [(0, "n1:1", 0, 10), (1, "n1:2", 0, 12), (2, "n1:1", 10, 8), (3, "n1:2", 12, 8)]
    assert found["failed"]["y"] == ["unknown"]
    assert "Of 44s of work, 86% on trials that ended as “full budget”, 9%" in timeline_panel(books).caption


def test_a_moment_on_the_timeline_is_seen(tmp_path: Path) -> None:
    events = [event | {"time": 1e6} if event["kind"] == "search" and event["status"] == "finished" else event
              for event in few()]  # fmt: skip
    events.insert(-1, {"time": 1e6, "kind": "report", "trial": 5, "tokens": 1000, "worker": "n1:1", "state": "pruned"})
    bars = [trace["x"] for trace in traces(timeline_panel(read_search(make(tmp_path, events=events)))).values()]
    assert min(map(min, bars)) >= 0.002 * max(map(max, bars))


def test_where_nothing_can_be_drawn_stands_why(tmp_path: Path) -> None:
    words = {name: {p.key for p in report_panels(one) if p.figure is None} for name, one in cases(tmp_path).items()}
    everything = {"front", "confirmed", "windows", "volume", "curves", "parallel"}
    assert words["waiting"] == words["running"] == words["nan"] == words["pruned"] == everything
    assert words["one"] == words["nan on the way"] == {"confirmed", "windows", "parallel"}
    assert words["beyond the reference"] == {"confirmed", "windows", "parallel", "volume"}


def test_the_command_trains_the_same_trial_again(books: SearchView) -> None:
    for trial in books.best:
        config = books.configs[trial.number]
        words = train_command(config, Path("runs/it's here")).split(" --")
        assert words[0] == "recur-tune train" and words[-1] == "out 'runs/it'\"'\"'s here'"
        flags = dict(word.split(" ", 1) for word in words[1:-1])
        assert parse(TrialConfig, {flag.replace("-", "_"): value for flag, value in flags.items()}) == config
        assert "seed" not in flags, "what is so anyway goes without saying"


def test_a_picture_has_the_confirmed_front_once_there_is_one(tmp_path: Path) -> None:
    for events, keys in ((few(), []), (confirmed(few()), ["confirmed"])):
        search = read_search(make(tmp_path / str(len(events)), events=events))
        drawn = [panel.key for panel in picture_panels(report_panels(search))]
        assert drawn == ["front", *keys, "windows", "volume", "curves"]


def test_units_of_time() -> None:
    assert [time_unit(seconds)[1] for seconds in (5, 119, 120, 7200, 200_000)] == [
        "seconds", "seconds", "minutes", "hours", "days",
    ]  # fmt: skip
