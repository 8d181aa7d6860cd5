"""The front as further seeds see it: means with their standard errors."""

from __future__ import annotations

import html
import math

from recur_tune.drawing.marks import KINDS, Figure, Panel, axis, layout
from recur_tune.reporting.reading import Reading
from recur_tune.searching.confirmation import Confirmation, Confirmed, confirmation
from recur_tune.searching.objectives import OBJECTIVES

_HEIGHT = 460


def confirmed_panel(search: Reading) -> Panel:
    """Means over further seeds against the first cost; hollow marks stand within noise of a cheaper point."""
    key, title = "confirmed", "The front, confirmed with other seeds"
    found = confirmation(search.state, search.spec)
    if found is None:
        return Panel.of_words(key, title, f"Nobody has yet: recur-tune confirm {search.name} trains it again.")
    ends = [value for point in found.points for value in _ends(point)]
    cost = search.costs[0]
    y_axis = axis(OBJECTIVES[found.quality], ends, log=False)
    y_axis["title"]["text"] += f", {found.split} split"
    look = layout(_HEIGHT, xaxis=axis(cost, [point.trial.costs[cost.name] for point in found.points]), yaxis=y_axis)
    traces = [_points(search, found, kind) for kind in KINDS]
    return Panel(key, title, _caption(found), {"data": [one for one in traces if one["x"]], "layout": look}, _HEIGHT)


def _points(search: Reading, found: Confirmation, kind: str) -> Figure:
    own, look = [point for point in found.points if search.kind(point.trial) == kind], KINDS[kind]
    symbols = [f"{look.symbol}-open" if point.no_better_than else look.symbol for point in own]
    return {
        "type": "scatter", "mode": "markers+text", "name": look.title, "textposition": "top right",
        "x": [point.trial.costs[search.costs[0].name] for point in own], "y": [point.mean for point in own],
        "error_y": {"array": [_error(point) for point in own], "color": look.colour, "thickness": 1.2},
        "marker": {"symbol": symbols, "size": 11, "color": look.colour},
        "text": [point.trial.name for point in own], "customdata": [point.trial.number for point in own],
        "hoverinfo": "text", "hovertext": [_words(found, point) for point in own],
    }  # fmt: skip


def _words(found: Confirmation, point: Confirmed) -> str:
    quality = OBJECTIVES[found.quality]
    values = ", ".join(quality.format(value) for value in point.values)
    return "<br>".join([f"<b>{point.trial.name}</b> {html.escape(point.verdict)}", f"by seed: {values}"])


def _caption(found: Confirmation) -> str:
    held = sum(not point.no_better_than for point in found.points)
    if math.isnan(found.spread):
        return "One further seed each has no standard error, and cannot tell what is chance."
    return (
        f"Means over further seeds, with one standard error to either side; seeds differ by {found.spread:.2g}. "
        f"{held} of {len(found.points)} points hold; hollow ones do no better, as far as seeds can tell, than one that "
        "costs no more."
    )


def _error(point: Confirmed) -> float:
    return 0.0 if math.isnan(point.standard_error) else point.standard_error


def _ends(point: Confirmed) -> tuple[float, float]:
    return point.mean - _error(point), point.mean + _error(point)
