"""Parallel coordinates: a line through the parameters and objectives of every trial that ran."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from recur_tune.report.figures.style import GREY, Figure, Panel, layout, round_powers, short, span, ticks
from recur_tune.report.search_view import SearchView
from recur_tune.search.record.objectives import OBJECTIVES, Objective
from recur_tune.search.record.space import Range
from recur_tune.search.record.state import TrialRecord, values_of

_HEIGHT = 460
_FEW_TICKS = 6
_FEW_VALUES = 8  # a number with at most so many values is drawn as a choice, evenly spaced
_RATES = ("learning_rate", "recurrence_rate")  # compared by factors, so their axes are logarithmic
_MISSING = "–"
_NO_RANK = -1.0
_BELOW = 0.15  # of an axis, below its lowest value: where trials without a value pass
_VIRIDIS = ("#440154", "#3b528b", "#21918c", "#5ec962", "#c2df23")  # without the end that white paper hides
_FEW_LINES = 60  # on paper; with more, lines are thinner
_LABEL = 10  # characters of an axis' name on a line of paper


def parallel_panel(search: SearchView) -> Panel:
    """Parallel coordinates of every trial that ran."""
    key, title = "parallel", "Parameters and objectives, side by side"
    if len(search.known) < 2:
        return Panel.of_words(key, title, "It takes two trials with values to compare their parameters.")
    ran = [trial for trial in search.state.trials.values() if trial.started is not None]
    ranks = _ranks(search)
    trials = sorted(ran, key=lambda trial: trial.number in ranks)  # drawn last, on top
    colours = [ranks.get(trial.number, _NO_RANK) for trial in trials]
    axes = [_parameter_axis(search, trials, name) for name in decided(search, trials)]
    axes += [_objective_axis(trials, OBJECTIVES[name]) for name in search.spec.objectives]
    axes.append(_choice_axis("state", [trial.state for trial in trials], top="complete"))
    varied = [axis for axis in axes if len(set(axis["values"])) > 1]
    scale = [[0.0, GREY], [0.5, GREY], *([0.5 + 0.125 * at, colour] for at, colour in enumerate(_VIRIDIS))]
    line = {"color": colours, "cmin": _NO_RANK, "cmax": 1, "colorscale": scale, "showscale": False}
    trace = {
        "type": "parcoords", "dimensions": [_dimension(axis) for axis in varied], "line": line,
        "labelfont": {"size": 11}, "tickfont": {"size": 11}, "rangefont": {"size": 1, "color": "white"},
        "unselected": {"line": {"color": "#dddddd", "opacity": 0.3}},
    }  # fmt: skip
    others = len(trials) - len(ranks)
    grey = f" The {others} in grey have no value at full budget: see their state." if others else ""
    caption = (
        f"Drag along an axis to keep only the trials that pass there, and click it to show all again; dark lines have "
        f"the better {search.quality.title}.{grey} A dash ({_MISSING}) means that the trial has no such value."
    )
    figure = {"data": [trace], "layout": layout(_HEIGHT, margin={"l": 60, "r": 60, "t": 56, "b": 24})}
    return Panel(
        key, title, caption, figure, _HEIGHT, min_width=105 * len(varied), printed=_on_paper(varied, colours)
    )  # fmt: skip


def decided(search: SearchView, trials: Sequence[TrialRecord]) -> list[str]:
    """The fields that the sampler chose for some trial, without those that follow from another field's value."""
    space = search.spec.parsed_space
    labels = {label for trial in trials for label in space.closest(search.params(trial))}
    return [name for name, one in space.all_parameters.items() if space.label(name, one) in labels]


def _dimension(axis: Figure) -> Figure:
    """An axis for plotly, with plotly's own ticks where possible: a brush snaps to ours."""
    ours = ("tickvals", "ticktext") if "tickformat" in axis else ()
    return {name: value for name, value in axis.items() if name not in ours}


def _ranks(search: SearchView) -> dict[int, float]:
    """From 0 to 1 by quality, of the trials at full budget.

    Not by the quality itself: one outlier would leave all others the same colour.
    """
    best_first = sorted(search.complete, key=lambda trial: values_of([trial], search.quality)[0])
    return {trial.number: at / max(1, len(best_first) - 1) for at, trial in enumerate(best_first)}


def _objective_axis(trials: Sequence[TrialRecord], objective: Objective) -> Figure:
    values = [value if math.isfinite(value) else None for value in values_of(trials, objective)]
    low, high, log = span([value for value in values if value is not None])
    marks = ticks(objective, low, high, log)
    places = marks.get("tickvals") or _even_ticks(low, high)
    axis = _number_axis(objective.title, values, (low, high), log, places, objective.format)
    return axis if None in values or "tickvals" in marks else axis | {"tickformat": marks["tickformat"]}


def _parameter_axis(search: SearchView, trials: Sequence[TrialRecord], name: str) -> Figure:
    """A parameter's axis; logarithmic where the space is, and for rates."""
    parameter = search.spec.parsed_space.all_parameters[name]
    values = [search.params(trial).get(name) for trial in trials]
    there = {value for value in values if value is not None}
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in there) or len(there) < 2:
        return _choice_axis(name, values)
    low, high = min(there), max(there)
    is_range = isinstance(parameter, Range)
    far_apart = not is_range and low > 0 and high / low > _FEW_VALUES
    log = low > 0 and (name in _RATES or getattr(parameter, "log", False) or far_apart)
    if not is_range and name not in _RATES and len(there) <= _FEW_VALUES:
        return _choice_axis(name, values)
    marks = sorted(there)
    if len(marks) > _FEW_TICKS:
        marks = round_powers(low, high, 10) if log else _even_ticks(low, high)
        marks = [mark for mark in marks if low <= mark <= high]
    return _number_axis(name, values, (low, high), log, marks if len(marks) > 1 else [low, high], short)


def _even_ticks(low: float, high: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(_FEW_TICKS).tick_values(low, high) if low <= tick <= high]


def _number_axis(
    label: str, values: Sequence[float | None], ends: tuple[float, float], log: bool, marks: Sequence[float],
    shown: Callable[[float], str],
) -> Figure:  # fmt: skip
    """A numeric axis; trials without a value pass below its lowest."""
    place: Callable[[float], float] = math.log10 if log else float
    low, high = map(place, ends)
    missing = low - _BELOW * (high - low)
    places, words = [place(mark) for mark in marks], [shown(mark) for mark in marks]
    if None in values:
        low, places, words = missing, [missing, *places], [_MISSING, *words]
    return {
        "label": label, "values": [missing if value is None else place(value) for value in values],
        "range": [low, high], "tickvals": places, "ticktext": words,
    }  # fmt: skip


def _choice_axis(label: str, values: Sequence[Any], top: Any = None) -> Figure:
    """A categorical axis, evenly spaced; trials without a value pass below."""
    order: list[Any] = sorted(
        {value for value in values if value is not None}, key=lambda one: (one == top, isinstance(one, str), one)
    )
    order = [None, *order] if None in values else order
    words = [_MISSING if value is None else html.escape(short(value)) for value in order]
    places = list(range(len(order)))
    return {
        "label": label, "values": [order.index(value) for value in values],
        "range": [0, max(1, len(order) - 1)], "tickvals": places, "ticktext": words,
    }  # fmt: skip


def _on_paper(axes: Sequence[Figure], ranks: Sequence[float]) -> Figure:
    """The same with plain lines for paper: plotly draws parallel coordinates with WebGL, which prints blank."""
    heights = [[_height(axis, value) for value in axis["values"]] for axis in axes]
    traces = []
    for colour, members in _by_colour(ranks).items():
        x: list[float | None] = []
        y: list[float | None] = []
        for trial in members:
            x += [*range(len(axes)), None]
            y += [*(height[trial] for height in heights), None]
        dash = "dot" if colour == GREY else "solid"
        line = {"color": colour, "width": 1 if len(ranks) <= _FEW_LINES else 0.6, "dash": dash}
        traces.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip"})
    words, lines = [], []
    for at, axis in enumerate(axes):
        lines.append({"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": {"color": "#444444", "width": 1}})
        name = "<br>".join(textwrap.wrap(axis["label"].replace("_", "_ "), _LABEL, break_long_words=False)).replace(
            "_ ", "_"
        )
        words.append({"x": at, "y": 1, "yref": "paper", "text": name, "yanchor": "bottom", "font": {"size": 10}})
        words += [
            {"x": at, "y": _height(axis, mark), "text": text, "xanchor": "right", "font": {"size": 10}, "xshift": -2,
             "bgcolor": "rgba(255, 255, 255, 0.75)", "borderpad": 1}
            for mark, text in zip(axis["tickvals"], axis["ticktext"], strict=True)
        ]  # fmt: skip
    hidden = {"visible": False, "fixedrange": True}
    look = layout(
        _HEIGHT, margin={"l": 8, "r": 12, "t": 48, "b": 8}, showlegend=False, shapes=lines,
        annotations=[{"showarrow": False, **one} for one in words],
        xaxis={**hidden, "range": [-0.7, len(axes) - 0.7]}, yaxis={**hidden, "range": [-0.02, 1.02]},
    )  # fmt: skip
    return {"data": traces, "layout": look}


def _by_colour(ranks: Sequence[float]) -> dict[str, list[int]]:
    """Indices of the trials by colour, those at full budget last."""
    colours = [GREY if rank < 0 else _VIRIDIS[round(rank * (len(_VIRIDIS) - 1))] for rank in ranks]
    order = [GREY, *reversed(_VIRIDIS)]
    found = {colour: [at for at, own in enumerate(colours) if own == colour] for colour in order}
    return {colour: members for colour, members in found.items() if members}


def _height(axis: Figure, value: float) -> float:
    low, high = axis["range"]
    return (value - low) / (high - low)
