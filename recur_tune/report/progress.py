"""Panels of the search over time: hypervolume, learning curves, and the workers' timeline."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np

from recur_tune.common.units import format_duration
from recur_tune.report.figures.style import (
    GREY,
    STYLES,
    Figure,
    Panel,
    axis,
    layout,
    plain_axis,
    usual_top,
)
from recur_tune.report.history import Span, timeline_rows
from recur_tune.report.search_view import SearchView
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.state import TrialRecord, values_of

_HEIGHT = 420
_LINE = 0.055  # height of a line of text, as a share of an axis
_MOST_NAMES = int(1 / _LINE)
_LEADER = 0.9  # of the way from a curve to its name
_ROOM = 56  # pixels right of the axes, for a name
_RUNG: Figure = {"color": GREY, "width": 1, "dash": "dot"}
_WORD = 0.14  # width of `rung 1`, as a share of an axis on a phone
_THIN = 1 / 400  # of the time axis, which a bar takes at least, or nobody would see it
_MOST_ROWS = 24
_MOST_NAMED = 150  # bars; with more, no name would fit
_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
# Title, colour and pattern of a span on the timeline, by how it ended.
_ENDS = {
    "complete": ("full budget", "#0072b2", ""), "pruned": ("pruned", "#e69f00", "/"),
    "failed": ("failed", "#d55e00", "x"), "moved": ("moved to another worker", "#56b4e9", "\\"),
    "paused": ("paused", "#999999", "."), "interrupted": ("interrupted", "#cccccc", "-"),
    "running": ("running", "#009e73", ""), "infeasible": ("infeasible", "#cc79a7", "+"),
}  # fmt: skip


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit of a time axis of this length: its seconds and its name."""
    return next((unit, name) for least, unit, name in _UNITS if seconds >= least)


def volume_panel(search: SearchView) -> Panel:
    """The front's hypervolume over the search's time."""
    key, title = "volume", "Hypervolume over time"
    if not search.volumes:
        words = "The reference point is not known before the plain baseline's first validation."
        return Panel.of_words(key, title, words)
    if search.volumes[-1].value == 0:
        return Panel.of_words(key, title, "No trial at full budget is better than the reference point yet.")
    unit, name = time_unit(search.volumes[-1].seconds)
    ended = [volume for volume in search.volumes if volume.trial is not None]
    line = {"shape": "hv", "color": STYLES["none"].colour, "width": 2}
    traces: list[Figure] = [
        {
            "type": "scatter", "mode": "lines", "name": "hypervolume", "line": line, "hoverinfo": "skip",
            "x": [volume.seconds / unit for volume in search.volumes], "y": [volume.value for volume in search.volumes],
            "fill": "tozeroy", "fillcolor": "rgba(0, 114, 178, 0.08)",
        },
        {
            "type": "scatter", "mode": "markers", "name": "a trial ends", "marker": {"color": line["color"], "size": 6},
            "x": [volume.seconds / unit for volume in ended], "y": [volume.value for volume in ended],
            "customdata": [volume.trial for volume in ended],
            "hovertext": [f"hypervolume {volume.value:.4f}" for volume in ended],
        },
    ]  # fmt: skip
    objectives = [OBJECTIVES[name] for name in search.spec.objectives]
    worst = ", ".join(f"{one.title} {one.format(search.state.reference[one.name])}" for one in objectives)
    caption = (
        "The share of the box below the reference point that the front dominates, after each trial at full budget; "
        f"where the line is flat, more trials did not improve the front. Reference: {worst}."
    )
    x_axis, y_axis = plain_axis(f"{name} of searching"), plain_axis("hypervolume", rangemode="tozero")
    look = layout(_HEIGHT, xaxis=x_axis, yaxis=y_axis, showlegend=False)
    return Panel(key, title, caption, {"data": traces, "layout": look}, _HEIGHT)


def curves_panel(search: SearchView) -> Panel:
    """Validations of the trials on the front, and where others were pruned."""
    key, title = "curves", f"Learning curves of the front: {search.quality.title} by tokens"
    if not search.best:
        return Panel.of_words(key, title, "No trial is on the front yet.")
    curves = {trial.number: curve(search, trial) for trial in search.best}
    traces = [_curve(search, trial, curves[trial.number]) for trial in search.best]
    pruned = [trial for trial in search.known if trial.state == "pruned"]
    mark = {"symbol": "x", "size": 7, "color": GREY, "opacity": 0.6}
    traces.append({
        "type": "scatter", "mode": "markers", "name": "pruned here", "marker": mark,
        "x": [trial.tokens for trial in pruned], "y": values_of(pruned, search.quality),
        "customdata": [trial.number for trial in pruned],
    })  # fmt: skip
    traces += _legend(search)
    drawn = [value for points in curves.values() for _, value in points] + values_of(pruned, search.quality)
    top = usual_top(drawn)
    y_axis = axis(search.quality, [value for value in drawn if value <= top], log=False)
    rungs = search.spec.budget.rung_tokens
    longest = max([*rungs, *(tokens for points in curves.values() for tokens, _ in points)])
    x_axis = plain_axis("tokens of training", tickformat="~s", range=[0, 1.06 * longest])
    ends = {trial.name: curves[trial.number][-1] for trial in search.best}
    bottom, top = y_axis["range"]
    traces += _names(ends, top, bottom, x_axis["range"][1])
    lines, words = _rungs(rungs, x_axis["range"][1])
    crosses = f", and crosses mark the {len(pruned)} that were pruned" if pruned else ""
    caption = (
        "Validations of every trial on the front, with a shape for each recurrence and dashes for plain; "
        f"dotted lines are the rungs, where trials are compared{crosses}."
    )
    look = layout(_HEIGHT, xaxis=x_axis, yaxis=y_axis, shapes=lines, annotations=words)
    look["margin"]["r"] = _ROOM
    return Panel(key, title, caption, {"data": [trace for trace in traces if trace["x"]], "layout": look}, _HEIGHT)


def curve(search: SearchView, trial: TrialRecord) -> list[tuple[int, float]]:
    """A trial's quality at each of its validations, those without a number left out."""
    found = ((one.tokens, one.metrics.get(search.quality.name, math.nan)) for one in trial.validations)
    return [(tokens, value) for tokens, value in found if math.isfinite(value)]


def _curve(search: SearchView, trial: TrialRecord, points: Sequence[tuple[int, float]]) -> Figure:
    look = STYLES[search.kind(trial)]
    return {
        "type": "scatter", "mode": "lines+markers", "name": trial.name, "showlegend": False,
        "x": [tokens for tokens, _ in points], "y": [value for _, value in points],
        "line": {"color": look.colour, "dash": look.dash, "width": 1.6},
        "marker": {"symbol": look.symbol, "size": 7, "color": look.colour},
        "customdata": [trial.number] * len(points),
        "hovertext": [f"{search.quality.format(value)} after {tokens:,} tokens" for tokens, value in points],
    }  # fmt: skip


def _names(curves: Mapping[str, tuple[float, float]], top: float, bottom: float, edge: float) -> list[Figure]:
    """Names right of the axes, each with a thin line from the end of its curve."""
    last = sorted((end for end in curves.items() if bottom <= end[1][1] <= top), key=lambda end: end[1][1])
    if len(last) > _MOST_NAMES:
        last = [last[at] for at in np.linspace(0, len(last) - 1, _MOST_NAMES).round().astype(int)]
    heights = spread([value for _, (_, value) in last], bottom, top, _LINE * (top - bottom))
    thin = {"color": GREY, "width": 0.6}
    leaders = [
        {
            "type": "scatter", "mode": "lines", "name": f"to {name}", "x": [tokens, tokens + _LEADER * (edge - tokens)],
            "y": [value, height],
            "line": thin, "hoverinfo": "skip", "showlegend": False, "cliponaxis": False,
        }
        for (name, (tokens, value)), height in zip(last, heights, strict=True)
    ]  # fmt: skip
    words = {
        "type": "scatter", "mode": "text", "x": [edge] * len(last), "y": heights, "text": [name for name, _ in last],
        "textposition": "middle right", "textfont": {"size": 11}, "hoverinfo": "skip", "showlegend": False,
        "cliponaxis": False,
    }  # fmt: skip
    return [*leaders, words]


def spread(values: Sequence[float], bottom: float, top: float, gap: float) -> list[float]:
    """Heights at least a gap apart, in total nearest to these ascending values: an isotonic regression."""
    from scipy.optimize import isotonic_regression

    if not values:
        return []
    steps = gap * np.arange(len(values))
    lowest = isotonic_regression(np.asarray(values) - steps).x
    return (np.clip(lowest, bottom, max(bottom, top - steps[-1])) + steps).tolist()


def _legend(search: SearchView) -> list[Figure]:
    """One entry for each recurrence instead of one for each trial, and one for the rungs."""
    kinds = {search.kind(trial) for trial in search.best}
    rung = {"type": "scatter", "mode": "lines", "name": "rung", "x": [None], "y": [None], "line": _RUNG}
    return [
        {
            "type": "scatter", "mode": "lines+markers", "name": look.title, "x": [None], "y": [None],
            "line": {"color": look.colour, "dash": look.dash, "width": 1.6},
            "marker": {"symbol": look.symbol, "size": 7, "color": look.colour},
        }
        for kind, look in STYLES.items() if kind in kinds
    ] + [rung]  # fmt: skip


def _rungs(tokens: Sequence[int], edge: float) -> tuple[list[Figure], list[Figure]]:
    """A line for each rung, and its name unless the next one's would cover it."""
    lines = [{"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": _RUNG} for at in tokens]
    small = {"size": 11, "color": GREY}
    words: list[Figure] = []
    for place in reversed(range(len(tokens))):
        text = f"rung {place + 1}" if place + 1 < len(tokens) else "budget"
        if not words or words[-1]["x"] - tokens[place] >= _WORD * edge:
            look = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "font": small}
            words.append({"x": tokens[place], "text": text, **look})
    return lines, words[::-1]


def timeline_panel(search: SearchView) -> Panel:
    """Which worker trained which trial when."""
    key, title = "timeline", "Where the time went"
    if not search.spans:
        return Panel.of_words(key, title, "No worker has taken a trial yet.")
    rows = timeline_rows(search.spans, _MOST_ROWS)
    unit, name = time_unit(max(search.state.active_seconds, 1))
    least = _THIN * max(span.end for span in search.spans)
    traces = []
    for state, (words, colour, pattern) in _ENDS.items():
        own = [(row, span) for row, members in rows.items() for span in members if span.state == state]
        if own:
            look = {"color": colour, "line": {"color": "white", "width": 0.5}}
            look["pattern"] = {"shape": pattern, "fillmode": "overlay", "fgcolor": "white", "size": 7, "solidity": 0.25}
            traces.append(_bars(own, unit, least, words, look, named=len(search.spans) <= _MOST_NAMED))
    x_axis = plain_axis(f"{name} of searching", rangemode="tozero")
    y_axis = plain_axis(
        "", type="category", categoryorder="array", categoryarray=[html.escape(row) for row in rows][::-1]
    )
    height = 150 + 30 * len(rows)
    look = layout(
        height, xaxis=x_axis, yaxis=y_axis | {"showgrid": False}, barmode="overlay", bargap=0.25,
        uniformtext={"mode": "hide", "minsize": 9},
    )  # fmt: skip
    return Panel(key, title, _shares(search.spans), {"data": traces, "layout": look}, height=height)


def _bars(
    own: Sequence[tuple[str, Span]], unit: float, least: float, name: str, look: Figure, named: bool
) -> Figure:  # fmt: skip
    return {
        "type": "bar", "orientation": "h", "name": name, "marker": look,
        "y": [html.escape(row) for row, _ in own], "base": [span.start / unit for _, span in own],
        "x": [max(span.seconds, least) / unit for _, span in own], "customdata": [span.trial for _, span in own],
        "text": [f"T{span.trial}" for _, span in own], "textposition": "inside" if named else "none",
        "insidetextanchor": "middle", "textangle": 0, "textfont": {"size": 11}, "constraintext": "inside",
        "hovertext": [f"{html.escape(span.worker)} {format_duration(span.seconds)}".strip() for _, span in own],
    }  # fmt: skip


def _shares(spans: Sequence[Span]) -> str:
    """How the workers' time was spent, in words."""
    whole = sum(span.seconds for span in spans)
    last = {span.trial: span.state for span in spans}  # the time of a trial that moved counts by how the trial ended
    spent: dict[str, float] = {}
    for span in spans:
        spent[last[span.trial]] = spent.get(last[span.trial], 0.0) + span.seconds
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    parts = [f"{seconds / (whole or 1):.0%} on trials that ended as “{_ENDS[state][0]}”" for state, seconds in ordered]
    return f"Every bar is a worker on a trial. Of {format_duration(whole)} of work, {', '.join(parts)}."
