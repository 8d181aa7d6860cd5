"""A confirmed front as a figure: means over further seeds with their standard errors, and what stands within noise."""

from __future__ import annotations

import math
from collections.abc import Callable

from recur_tune.report.figures.marks import GREY, KINDS, Figure, axis, layout
from recur_tune.search.record.confirmation import Confirmation, ConfirmedTrial
from recur_tune.search.record.objectives import OBJECTIVES, Objective
from recur_tune.search.record.state import TrialRecord

HEIGHT = 460


def confirmed_figure(
    found: Confirmation, cost: Objective, kind_of: Callable[[TrialRecord], str], fixed: bool = False
) -> Figure:
    """Means against a cost: a bar is one standard error to either side, a filled mark holds, a hollow one does
    no better than a cheaper one, to which a dotted line leads."""
    y_axis = axis(OBJECTIVES[found.quality], [end for point in found.points for end in _ends(point)], False, fixed)
    y_axis["title"]["text"] += f"<br>mean of {_seeds(found)} seeds, {found.split} split"  # two lines: one is too long
    x_axis = axis(cost, [point.trial.costs[cost.name] for point in found.points], fixed=fixed)
    places = {point.trial.name: (point.trial.costs[cost.name], point.mean) for point in found.points}
    links = [_link(places[one.trial.name], places[one.no_better_than]) for one in found.points if one.no_better_than]
    traces = [_marks([one for one in found.points if kind_of(one.trial) == kind], cost, kind) for kind in KINDS]
    return {
        "data": [trace for trace in traces if trace["x"]],
        "layout": layout(HEIGHT, xaxis=x_axis, yaxis=y_axis, shapes=links),
    }


def _marks(own: list[ConfirmedTrial], cost: Objective, kind: str) -> Figure:
    look = KINDS[kind]
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
    """How many seeds a point has: `3`, or `2 to 3` where some are missing."""
    counts = sorted({len(point.values) for point in found.points})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _error(point: ConfirmedTrial) -> float:
    return 0.0 if math.isnan(point.standard_error) else point.standard_error


def _ends(point: ConfirmedTrial) -> tuple[float, float]:
    return point.mean - _error(point), point.mean + _error(point)
