"""Panels of the result: the front, and quality by window size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from recur_tune.report.figures.front import EDGE, Front, by_kind, points
from recur_tune.report.figures.style import STYLES, Figure, Panel, axis, layout, listed, plain_axis, usual_top
from recur_tune.report.search_view import SearchView
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.state import TrialRecord, values_of

_FRONT_HEIGHT, _HEIGHT = 540, 420


def front_panel(search: SearchView) -> Panel:
    """Quality against the first cost, coloured by the second, with a shape for each recurrence."""
    key, title = "front", f"The front: {search.quality.title} against {search.costs[0].title}"
    if not search.complete:
        return Panel.of_words(key, title, "No trial has reached its full budget with finite values yet.")
    cost, quality = search.costs[0], search.quality
    colour = search.costs[1] if len(search.costs) > 1 else None
    unfinished = [trial for trial in search.known if trial.state != "complete"]
    groups = by_kind(search.complete, search.best, unfinished, search.kind)
    drawn = Front(cost, quality, colour, groups)
    figure = drawn.figure(_FRONT_HEIGHT, top=60 if colour else 32, edge=EDGE)
    coloured = f" Colour is {colour.title}, dark for little." if colour else ""
    objectives = listed([OBJECTIVES[name].title for name in search.spec.objectives])
    left_out = len(search.known) - len(drawn.in_view)
    more = (
        f" {left_out} more {'lies' if left_out == 1 else 'lie'} outside; a double click shows all." if left_out else ""
    )
    caption = (
        "Lower and further left is better. Every recurrence has its own shape. A black edge: on the front of "
        f"{objectives}. Hollow: not at full budget. Lines join the best of a recurrence, "
        f"dashed for plain.{coloured}{more}"
    )
    return Panel(key, title, caption, figure, _FRONT_HEIGHT)


def windows_panel(search: SearchView) -> Panel:
    """Quality by window size, a line through the best of each recurrence."""
    key, title = "windows", f"{search.quality.title.capitalize()} by window size"
    sizes = sorted({search.configs[trial.number].window for trial in search.complete})
    if len(sizes) < 2:
        held = f"all have a window of {sizes[0]}" if sizes else "there are none yet"
        return Panel.of_words(key, title, f"Nothing to compare among the trials at full budget: {held}.")
    qualities = values_of(search.complete, search.quality)
    top = usual_top(qualities)
    traces: list[Figure] = []
    for kind, look in STYLES.items():
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
        "Each line joins the best trial of its recurrence at every window. The wider the gap to plain at small "
        "windows, the more the state carries from window to window."
    )
    figure = {"data": [trace for trace in traces if trace["x"]], "layout": layout(_HEIGHT, xaxis=x_axis, yaxis=y_axis)}
    return Panel(key, title, caption, figure, _HEIGHT)


def best_by_window(search: SearchView, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The trial with the best quality at every window size, the smallest window first."""
    best: dict[int, TrialRecord] = {}
    for trial in trials:
        window = search.configs[trial.number].window
        if window not in best or _quality(search, trial) < _quality(search, best[window]):
            best[window] = trial
    return [best[window] for window in sorted(best)]


def _quality(search: SearchView, trial: TrialRecord) -> float:
    return values_of([trial], search.quality)[0]


def _by_window(search: SearchView, trials: Sequence[TrialRecord], name: str, **look: Any) -> Figure:
    trace = points(trials, search.quality, search.quality, name, **look)
    return trace | {"x": [search.configs[trial.number].window for trial in trials]}


def _thinned(sizes: Sequence[int], log: bool) -> list[int]:
    """Sizes for tick labels, without those that would overlap."""
    places = [math.log(size) if log else size for size in sizes]
    room, shown = 0.07 * (places[-1] - places[0]), [0]
    for at in range(1, len(sizes)):
        if places[at] - places[shown[-1]] >= room:
            shown.append(at)
    return [sizes[at] for at in shown]
