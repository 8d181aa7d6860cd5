"""The confirmed front: means over further seeds with their standard errors, on the report's page and as a picture."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from recur_tune.common.units import counted
from recur_tune.report.figures.pictures import MARKERS, empty_picture, legend_below, plot, save_picture
from recur_tune.report.figures.style import GREY, STYLES, Figure, Panel, axis, layout
from recur_tune.report.search_view import SearchView
from recur_tune.search.record.confirmation import Confirmation, ConfirmedTrial, confirmation
from recur_tune.search.record.objectives import COSTS, OBJECTIVES, Objective
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import TrialRecord

if TYPE_CHECKING:  # it takes a while to import, and most commands draw nothing
    from matplotlib.figure import Figure as Canvas

_HEIGHT = 460


def confirmed_panel(search: SearchView) -> Panel:
    """Means over further seeds against the first cost; hollow marks are no better than a cheaper point."""
    key, title = "confirmed", "The front, confirmed with other seeds"
    found = confirmation(search.state, search.spec)
    if found is None:
        return Panel.of_words(key, title, f"Not confirmed yet: recur-tune confirm {search.name} trains it again.")
    figure = confirmed_figure(found, search.costs[0], search.kind)
    words = {point.trial.number: _words(found, point) for point in found.points}
    for trace in figure["data"]:
        trace.update(hoverinfo="text", hovertext=[words[number] for number in trace["customdata"]])
    return Panel(key, title, _caption(found), figure, _HEIGHT)


def _words(found: Confirmation, point: ConfirmedTrial) -> str:
    quality = OBJECTIVES[found.quality]
    values = ", ".join(quality.format(value) for value in point.values)
    return "<br>".join([f"<b>{point.trial.name}</b> {html.escape(point.verdict)}", f"by seed: {values}"])


def _caption(found: Confirmation) -> str:
    held = sum(not point.no_better_than for point in found.points)
    if math.isnan(found.spread):
        return "One further seed each has no standard error, so noise cannot be estimated."
    return (
        f"Means over further seeds, with one standard error to either side; seeds differ by {found.spread:.2g}. "
        f"{held} of {counted(len(found.points), 'point')} hold; hollow ones are, within noise, no better than a point "
        f"that costs no more.{'' if found.is_whole else f' Not confirmed yet: {found.unconfirmed_names}.'}"
    )


def draw_confirmation(title: str, spec: SearchSpec, found: Confirmation, path: Path) -> Path:
    """Write a confirmed front as a PNG."""
    save_picture(confirmed_picture(title, spec, found), path)
    return path


def confirmed_picture(title: str, spec: SearchSpec, found: Confirmation) -> Canvas:
    """Draw means against the first cost."""

    def kind_of(trial: TrialRecord) -> str:
        return spec.trial_config(trial.params).recurrence

    picture, axes = empty_picture(title)
    cost = next(OBJECTIVES[name] for name in spec.objectives if name in COSTS)
    plot(axes, confirmed_figure(found, cost, kind_of, fixed=True))
    legend_below(picture, _legend({kind_of(point.trial) for point in found.points}, found))
    return picture


def _legend(kinds: set[str], found: Confirmation) -> list[object]:
    from matplotlib.lines import Line2D

    entries: list[object] = [
        Line2D([], [], linestyle="", marker=MARKERS[look.symbol], color=look.colour, markersize=8, label=look.title)
        for kind, look in STYLES.items() if kind in kinds
    ]  # fmt: skip
    if any(point.no_better_than for point in found.points):
        label = "no better than a cheaper one"
        entries.append(
            Line2D([], [], linestyle=":", marker="o", markerfacecolor="white", color=GREY, markersize=8, label=label)
        )
    return entries


def confirmed_figure(
    found: Confirmation, cost: Objective, kind_of: Callable[[TrialRecord], str], fixed: bool = False
) -> Figure:
    """Means against a cost with one standard error to either side. A filled mark holds; a hollow one is no better than
    a cheaper point, to which a dotted line leads."""
    y_axis = axis(OBJECTIVES[found.quality], [end for point in found.points for end in _ends(point)], False, fixed)
    y_axis["title"]["text"] += f"<br>mean of {_seeds(found)}, {found.split} split"  # two lines: one is too long
    x_axis = axis(cost, [point.trial.costs[cost.name] for point in found.points], fixed=fixed)
    places = {point.trial.name: (point.trial.costs[cost.name], point.mean) for point in found.points}
    links = [_link(places[one.trial.name], places[one.no_better_than]) for one in found.points if one.no_better_than]
    traces = [_marks([one for one in found.points if kind_of(one.trial) == kind], cost, kind) for kind in STYLES]
    return {
        "data": [trace for trace in traces if trace["x"]],
        "layout": layout(_HEIGHT, xaxis=x_axis, yaxis=y_axis, shapes=links),
    }


def _marks(own: list[ConfirmedTrial], cost: Objective, kind: str) -> Figure:
    look = STYLES[kind]
    return {
        "type": "scatter", "mode": "markers+text", "name": look.title, "textposition": "top right",
        "x": [point.trial.costs[cost.name] for point in own], "y": [point.mean for point in own],
        "error_y": {"array": [_error(point) for point in own], "color": look.colour, "thickness": 1.2},
        "marker": {
            "symbol": [f"{look.symbol}-open" if point.no_better_than else look.symbol for point in own],
            "size": 13, "color": look.colour,
        },
        "text": [point.trial.name for point in own], "customdata": [point.trial.number for point in own],
    }  # fmt: skip


def _link(one: tuple[float, float], other: tuple[float, float]) -> Figure:
    line = {"color": GREY, "width": 1, "dash": "dot"}
    return {"type": "line", "layer": "below", "x0": one[0], "y0": one[1], "x1": other[0], "y1": other[1], "line": line}


def _seeds(found: Confirmation) -> str:
    """How many seeds a point has: `3 seeds`, or `2 to 3 seeds` where some are missing."""
    counts = sorted({len(point.values) for point in found.points})
    return counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _error(point: ConfirmedTrial) -> float:
    return 0.0 if math.isnan(point.standard_error) else point.standard_error


def _ends(point: ConfirmedTrial) -> tuple[float, float]:
    return point.mean - _error(point), point.mean + _error(point)
