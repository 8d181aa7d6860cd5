"""What was found: the front, quality by window size, and all parameters and objectives side by side."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from recur_tune.reporting.marks import (
    GREY,
    KINDS,
    Figure,
    Panel,
    axis,
    colour_axis,
    colour_values,
    layout,
    names_with_room,
    plain_axis,
    span,
    ticks,
    usual_top,
)
from recur_tune.reporting.reading import Reading, short, values_of
from recur_tune.searching.front import non_dominated
from recur_tune.searching.objectives import OBJECTIVES, Objective
from recur_tune.searching.space import Range
from recur_tune.searching.state import TrialRecord

_FRONT_HEIGHT, _HEIGHT, _PARALLEL_HEIGHT = 540, 420, 460
_EDGE = {"width": 0.8, "color": "#555555"}  # yellow on white would be lost without it
_FEW_VALUES = 8  # numbers that take no more than so many values stand evenly spaced, as choices


def front_panel(search: Reading) -> Panel:
    """Quality against the first cost, coloured by the second; the trials of either kind have a shape of their own."""
    key, title = "front", f"The front: {search.quality.title} against {search.costs[0].title}"
    if not search.complete:
        return Panel.of_words(key, title, "No trial has reached its full budget with values that are numbers yet.")
    cost, quality = search.costs[0], search.quality
    colour = search.costs[1] if len(search.costs) > 1 else None
    top = usual_top(values_of(search.complete, quality))
    shown = [trial for trial in search.complete if (trial.value(quality.name) or 0) <= top]
    x_axis, y_axis = axis(cost, values_of(shown, cost)), axis(quality, values_of(shown, quality), log=False)
    look = layout(_FRONT_HEIGHT, 60 if colour else 32, xaxis=x_axis, yaxis=y_axis)
    figure: Figure = {"data": [_unfinished(search)], "layout": look}
    if colour:
        figure["layout"]["coloraxis"] = colour_axis(colour, values_of(search.complete, colour))
    on_front = {trial.number for trial in search.best}
    beaten = [trial for trial in search.complete if trial.number not in on_front]
    figure["data"] += [_envelope(search, kind) for kind in KINDS]
    figure["data"] += [_beaten(search, kind, beaten, colour) for kind in KINDS]
    figure["data"] += [_best(search, kind, colour, x_axis) for kind in KINDS]
    figure["data"] = [trace for trace in figure["data"] if trace["x"]]
    coloured = f" Colour is {colour.title}, dark for little." if colour else ""
    above = len(search.complete) - len(shown)
    more = f" {above} more {'lies' if above == 1 else 'lie'} above; a double click shows all." if above else ""
    caption = (
        "Lower and further left is better: circles are plain models, triangles recurrent ones, and those with a black "
        f"edge no other trial beats in all of {_listed(search.spec.objectives)}; hollow ones have not reached their "
        f"full budget, and lines join the best of a kind, dashed for plain.{coloured}{more}"
    )
    return Panel(key, title, caption, figure, _FRONT_HEIGHT)


def _unfinished(search: Reading) -> Figure:
    trials = [trial for trial in search.known if trial.state != "complete"]
    symbols = [f"{KINDS[search.kind(trial)].symbol}-open" for trial in trials]
    marker = {"color": GREY, "size": 7, "opacity": 0.7, "symbol": symbols}
    return points(trials, search.costs[0], search.quality, "not at full budget", marker=marker)


def _envelope(search: Reading, kind: str) -> Figure:
    """The best of a kind for each cost, in the two axes alone."""
    cost, quality, look = search.costs[0], search.quality, KINDS[kind]
    own = [trial for trial in search.complete if search.kind(trial) == kind]
    if own:
        places = np.column_stack([values_of(own, cost), values_of(own, quality)])
        own = [trial for trial, best in zip(own, non_dominated(places), strict=True) if best]
    own.sort(key=lambda trial: trial.values([cost.name, quality.name]) or [])
    return {
        "type": "scatter", "mode": "lines", "name": f"{look.title}: best for its cost", "hoverinfo": "skip",
        "x": values_of(own, cost), "y": values_of(own, quality),
        "line": {"shape": "hv", "dash": look.dash, "color": "#555555", "width": 1.2},
    }  # fmt: skip


def _beaten(search: Reading, kind: str, beaten: Iterable[TrialRecord], colour: Objective | None) -> Figure:
    own = [trial for trial in beaten if search.kind(trial) == kind]
    marker = {
        "symbol": KINDS[kind].symbol,
        "size": 9,
        "opacity": 0.4,
        "line": _EDGE,
        **_coloured(search, own, kind, colour),
    }
    return points(own, search.costs[0], search.quality, f"{KINDS[kind].title}, beaten", marker=marker)


def _best(search: Reading, kind: str, colour: Objective | None, x_axis: Figure) -> Figure:
    own = [trial for trial in search.best if search.kind(trial) == kind]
    edge = {"width": 1.8, "color": "black"}
    marker = {"symbol": KINDS[kind].symbol, "size": 14, "line": edge, **_coloured(search, own, kind, colour)}
    named = dict(zip((trial.name for trial in search.best), _names(search, x_axis), strict=True))
    text = {
        "mode": "markers+text",
        "text": [named[trial.name] for trial in own],
        "textposition": "top right",
        "cliponaxis": False,
    }
    name = f"{KINDS[kind].title}, on the front"
    return points(own, search.costs[0], search.quality, name, marker=marker, textfont={"size": 11}, **text)


def _names(search: Reading, x_axis: Figure) -> list[str]:
    x, y = (values_of(search.best, objective) for objective in (search.costs[0], search.quality))
    return names_with_room([trial.name for trial in search.best], x, y, x_axis)


def _coloured(search: Reading, own: Sequence[TrialRecord], kind: str, colour: Objective | None) -> Figure:
    if colour is None:
        return {"color": KINDS[kind].colour}
    among = values_of(search.complete, colour)
    return {"color": colour_values(values_of(own, colour), among), "coloraxis": "coloraxis"}


def points(trials: Sequence[TrialRecord], x: Objective, y: Objective, name: str, **look: Any) -> Figure:
    """Trials as marks; the page shows what it knows of them under the pointer."""
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": values_of(trials, x), "y": values_of(trials, y),
        "customdata": [trial.number for trial in trials], **look,
    }  # fmt: skip


def windows_panel(search: Reading) -> Panel:
    """Quality by window size, a line through the best of each kind."""
    key, title = "windows", f"{search.quality.title.capitalize()} by window size"
    sizes = sorted({search.configs[trial.number].window for trial in search.complete})
    if len(sizes) < 2:
        held = f"all have a window of {sizes[0]}" if sizes else "there are none yet"
        return Panel.of_words(key, title, f"Nothing to compare among the trials at full budget: {held}.")
    qualities = values_of(search.complete, search.quality)
    top = usual_top(qualities)
    traces: list[Figure] = []
    for kind, look in KINDS.items():
        own = [trial for trial in search.complete if search.kind(trial) == kind]
        best = best_by_window(search, own)
        marker = {"symbol": look.symbol, "color": look.colour, "size": 7, "opacity": 0.3}
        others = [trial for trial in own if trial not in best]
        bold = marker | {"size": 12, "opacity": 1, "line": {"width": 1.2, "color": "black"}}
        line = {"color": look.colour, "dash": look.dash, "width": 2}
        traces += [
            _by_window(search, others, f"{look.title}, other trials", mode="markers", marker=marker),
            _by_window(search, best, f"{look.title}, best", mode="lines+markers", marker=bold, line=line),
        ]
    wide = sizes[-1] / sizes[0] > 4
    x_axis = plain_axis("window (tokens)", type="log" if wide else "linear", tickvals=_thinned(sizes, wide))
    x_axis["ticktext"] = [str(size) for size in x_axis["tickvals"]]
    y_axis = axis(search.quality, [value for value in qualities if value <= top], log=False)
    caption = (
        "Each line joins the best trial of its kind at every window: the wider the gap between the lines at small "
        "windows, the more the state carries from one window to the next."
    )
    figure = {"data": [trace for trace in traces if trace["x"]], "layout": layout(_HEIGHT, xaxis=x_axis, yaxis=y_axis)}
    return Panel(key, title, caption, figure, _HEIGHT)


def best_by_window(search: Reading, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The trial with the best quality at every window size, the smallest window first."""
    best: dict[int, TrialRecord] = {}
    for trial in trials:
        window = search.configs[trial.number].window
        if window not in best or _quality(search, trial) < _quality(search, best[window]):
            best[window] = trial
    return [best[window] for window in sorted(best)]


def _quality(search: Reading, trial: TrialRecord) -> float:
    return values_of([trial], search.quality)[0]


def _by_window(search: Reading, trials: Sequence[TrialRecord], name: str, **look: Any) -> Figure:
    trace = points(trials, search.quality, search.quality, name, **look)
    return trace | {"x": [search.configs[trial.number].window for trial in trials]}


def _thinned(sizes: Sequence[int], log: bool) -> list[int]:
    """Sizes to write below the axis: none that would touch the one before."""
    places = [math.log(size) if log else size for size in sizes]
    room, shown = 0.07 * (places[-1] - places[0]), [0]
    for at in range(1, len(sizes)):
        if places[at] - places[shown[-1]] >= room:
            shown.append(at)
    return [sizes[at] for at in shown]


def parallel_panel(search: Reading) -> Panel:
    """A line for every trial at full budget through all its parameters and objectives."""
    key, title = "parallel", "Parameters and objectives, side by side"
    if len(search.complete) < 2:
        return Panel.of_words(key, title, "It takes two trials at full budget to compare their parameters.")
    dimensions = [_parameter_dimension(search, name) for name in decided(search)]
    dimensions += [_objective_dimension(search, OBJECTIVES[name]) for name in search.spec.objectives]
    varied = [dimension for dimension in dimensions if len(set(dimension["values"])) > 1]
    quality = np.argsort(np.argsort(values_of(search.complete, search.quality))).tolist()
    # By rank: one trial far off would otherwise leave all others the same colour.
    line = {"color": quality, "colorscale": "Viridis", "showscale": False}
    trace = {
        "type": "parcoords", "dimensions": varied, "line": line, "labelfont": {"size": 11}, "tickfont": {"size": 11},
        "rangefont": {"size": 1, "color": "white"}, "unselected": {"line": {"color": "#dddddd", "opacity": 0.3}},
    }  # fmt: skip
    caption = (
        f"Drag along an axis to keep only the trials that pass there, and click it to let go; dark lines have the "
        f"better {search.quality.title}. A dash (–) means that the trial has no such parameter."
    )
    figure = {"data": [trace], "layout": layout(_PARALLEL_HEIGHT, margin={"l": 60, "r": 60, "t": 56, "b": 24})}
    return Panel(key, title, caption, figure, _PARALLEL_HEIGHT, min_width=95 * len(varied))


def decided(search: Reading) -> list[str]:
    """The fields that the sampler decided for some trial; what comes with another's value says nothing of its own."""
    space = search.spec.parsed_space
    labels = {label for trial in search.complete for label in space.closest(trial.params)}
    return [name for name in space.names if name in labels or any(label.startswith(f"{name}_of_") for label in labels)]


def _objective_dimension(search: Reading, objective: Objective) -> Figure:
    values = values_of(search.complete, objective)
    low, high, log = span(values)
    places = np.log10(values).tolist() if log else values
    ends = [math.log10(low), math.log10(high)] if log else [low, high]
    marks = ticks(objective, low, high, log)
    if log:
        marks["tickvals"] = [math.log10(value) for value in marks["tickvals"]]
    return {
        "label": objective.title,
        "values": places,
        "range": ends,
        **{k: v for k, v in marks.items() if k != "nticks"},
    }


def _parameter_dimension(search: Reading, name: str) -> Figure:
    """An axis for a parameter; trials that do not have it pass below its lowest value."""
    values = [trial.params.get(name) for trial in search.complete]
    there = {value for value in values if value is not None}
    if len(there) > _FEW_VALUES and all(isinstance(value, int | float) for value in there):
        return _number_dimension(search, name, values)
    order: list[Any] = sorted(there, key=lambda value: (isinstance(value, str), value))
    order = [None, *order] if None in values else order
    labels = ["–" if value is None else html.escape(short(value)) for value in order]
    places = [order.index(value) for value in values]
    return {"label": name, "values": places, "tickvals": list(range(len(order))), "ticktext": labels}


def _number_dimension(search: Reading, name: str, values: Sequence[Any]) -> Figure:
    parameter = search.spec.parsed_space.field(name)
    there = [value for value in values if value is not None]
    log = min(there) > 0 and (
        getattr(parameter, "log", False) if isinstance(parameter, Range) else max(there) / min(there) > 8
    )
    place = (lambda value: math.log10(value)) if log else float
    low, high = place(min(there)), place(max(there))
    marks = np.linspace(low, high, 5).tolist()
    labels = [f"{10**mark if log else mark:.3g}" for mark in marks]
    missing = low - 0.15 * (high - low)
    if None in values:
        marks, labels = [missing, *marks], ["–", *labels]
    places = [missing if value is None else place(value) for value in values]
    return {"label": name, "values": places, "tickvals": marks, "ticktext": labels}


def _listed(objectives: Sequence[str]) -> str:
    titles = [OBJECTIVES[name].title for name in objectives]
    return f"{', '.join(titles[:-1])} and {titles[-1]}"
