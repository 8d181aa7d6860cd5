"""The confirmed front: means over further seeds with their standard errors, on the report's page and as a picture."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recur_tune.common.units import counted
from recur_tune.report.figures.front import EDGE, entry
from recur_tune.report.figures.labels import finish
from recur_tune.report.figures.pictures import empty_picture, legend_below, plot, save_picture
from recur_tune.report.figures.style import GREY, STYLES, Figure, Panel, axis, colour_axis, colour_values, layout
from recur_tune.report.search_view import SearchView, costs_of
from recur_tune.search.record.confirmation import Confirmation, ConfirmedTrial, confirmation
from recur_tune.search.record.objectives import OBJECTIVES, Objective
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import TrialRecord

if TYPE_CHECKING:  # it takes a while to import, and most commands draw nothing
    from matplotlib.figure import Figure as Canvas

_HEIGHT = 460
_NEUTRAL = EDGE["color"]  # where colours say something else
_SAME = 1.05  # costs whose largest is at most so many times the smallest have no colours


def confirmed_panel(search: SearchView) -> Panel:
    """Means over further seeds against the first cost, coloured by the second; hollow marks are no better than a
    cheaper point."""
    key, title = "confirmed", "The front, confirmed with other seeds"
    found = confirmation(search.state, search.spec)
    if found is None:
        return Panel.of_words(key, title, f"Not confirmed yet: recur-tune confirm {search.name} trains it again.")
    figure = confirmed_figure(found, search.costs, search.kind)
    words = {point.trial.number: _words(found, point) for point in found.points}
    for trace in figure["data"]:
        if "customdata" in trace:
            trace.update(hoverinfo="text", hovertext=[words[number] for number in trace["customdata"]])
    bar = figure["layout"].get("coloraxis", {}).get("colorbar")
    coloured = f" Colour is {bar['title']['text']}, dark for little." if bar else ""
    return Panel(key, title, f"{_caption(found)}{coloured}", figure, _HEIGHT)


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
    figure = confirmed_figure(found, costs_of(spec), kind_of, fixed=True)
    plot(axes, figure)
    legend_below(picture, axes.get_legend_handles_labels()[0])
    finish(picture, [(axes, figure)])
    return picture


def confirmed_figure(
    found: Confirmation, costs: Sequence[Objective], kind_of: Callable[[TrialRecord], str], fixed: bool = False
) -> Figure:
    """Means against the first cost with one standard error to either side; colour is the second where points differ in
    it. A filled mark holds; a hollow one is no better than a cheaper point, to which a dotted line leads."""
    y_axis = axis(OBJECTIVES[found.quality], [end for point in found.points for end in _ends(point)], False, fixed)
    y_axis["title"]["text"] += f"<br>mean of {_seeds(found)}, {found.split} split"  # two lines: one is too long
    cost, *others = [one for one in costs if one.kind == "cost"] or [OBJECTIVES["flops_per_token"]]
    colour = next((one for one in others[:1] if _differ(_costs(found.points, one))), None)
    axes = {"xaxis": axis(cost, _costs(found.points, cost), fixed=fixed), "yaxis": y_axis}
    if colour:
        axes["coloraxis"] = colour_axis(colour, _costs(found.points, colour), wide=1)
    places = {point.trial.name: (point.trial.costs[cost.name], point.mean) for point in found.points}
    links = [_link(places[one.trial.name], places[one.no_better_than]) for one in found.points if one.no_better_than]
    traces, legend = [], []
    for kind in STYLES:
        own = [point for point in found.points if kind_of(point.trial) == kind]
        for beaten in (False, True):
            traces.append(_marks([one for one in own if bool(one.no_better_than) == beaten], cost, colour, kind))
        legend += [_in_legend(kind, colour)] if own else []
    if links:
        line, marker = {"color": GREY, "width": 1, "dash": "dot"}, _look("circle-open", _NEUTRAL)
        legend.append(entry("no better than a cheaper one", mode="lines+markers", line=line, marker=marker))
    look = layout(_HEIGHT, 60 if colour else 32, shapes=links, **axes)
    return {"data": [*(trace for trace in traces if trace["x"]), *legend], "layout": look}


def _marks(own: list[ConfirmedTrial], cost: Objective, colour: Objective | None, kind: str) -> Figure:
    """Points of one kind that all hold, or none does."""
    look = STYLES[kind]
    symbol = f"{look.symbol}-open" if any(point.no_better_than for point in own) else look.symbol
    marker = _look(symbol, look.colour)
    if colour:
        marker |= {"color": colour_values(_costs(own, colour)), "coloraxis": "coloraxis"}
    bars = {"array": [_error(point) for point in own], "color": _NEUTRAL if colour else look.colour, "thickness": 1.2}
    return {
        "type": "scatter", "mode": "markers+text", "name": look.title, "textposition": "top right",
        "x": _costs(own, cost), "y": [point.mean for point in own], "error_y": bars, "marker": marker,
        "text": [point.trial.name for point in own], "textfont": {"size": 11}, "legendgroup": look.title,
        "customdata": [point.trial.number for point in own], "showlegend": False,
    }  # fmt: skip


def _in_legend(kind: str, colour: Objective | None) -> Figure:
    """A filled mark, whether or not the kind's points hold."""
    look = STYLES[kind]
    marker = _look(look.symbol, _NEUTRAL if colour else look.colour)
    return entry(look.title, marker=marker) | {"legendgroup": look.title}


def _look(symbol: str, colour: str) -> Figure:
    is_open = symbol.endswith("-open")  # where a colour is seen on the edge alone
    return {"symbol": symbol, "size": 13, "color": colour, "line": {"width": 2.4} if is_open else EDGE}


def _costs(points: Sequence[ConfirmedTrial], cost: Objective) -> list[float]:
    return [point.trial.costs[cost.name] for point in points]


def _differ(costs: Sequence[float]) -> bool:
    """Whether a scale of colours tells them apart in a way that counts."""
    return max(costs) > _SAME * min(costs)


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
