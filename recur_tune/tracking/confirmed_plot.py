"""A confirmed front as a picture: means over further seeds with their standard errors, and what stands within noise."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recur_tune.files import whole_folder
from recur_tune.searching.confirmation import Confirmation, Confirmed
from recur_tune.searching.objectives import COSTS, OBJECTIVES
from recur_tune.searching.spec import SearchSpec
from recur_tune.tracking.plots import GREY, KINDS, Kind, axis_scale

if TYPE_CHECKING:  # it takes a while to import, and most commands draw nothing
    from matplotlib.figure import Figure


def draw_confirmation(title: str, spec: SearchSpec, found: Confirmation, path: Path) -> Path:
    """Write a confirmed front as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    image = io.BytesIO()
    FigureCanvasAgg(confirmed_figure(title, spec, found)).print_png(image)
    with whole_folder(path.parent) as partial:
        (partial / path.name).write_bytes(image.getvalue())
    return path


def confirmed_figure(title: str, spec: SearchSpec, found: Confirmation) -> Figure:
    """Draw means against the first cost: a bar is one standard error to either side, a filled mark holds, a hollow one
    stands within noise of a cheaper one, to which a dotted line leads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    cost = next(OBJECTIVES[name] for name in spec.objectives if name in COSTS)
    quality = OBJECTIVES[found.quality]
    places = {point.trial.name: (point.trial.costs[cost.name], point.mean) for point in found.points}
    errors = [0.0 if math.isnan(point.standard_error) else point.standard_error for point in found.points]
    ends = [mean + sign * error for (_, mean), error in zip(places.values(), errors, strict=True) for sign in (-1, 1)]
    x = axis_scale(cost, np.array([place[0] for place in places.values()]))
    y = axis_scale(quality, np.array(ends), log=False)
    axes.set(xscale="log" if x.log else "linear", xlim=(x.low, x.high), ylim=(y.low, y.high))
    axes.xaxis.set_ticks(x.ticks, x.labels)
    axes.yaxis.set_ticks(y.ticks, y.labels)
    axes.minorticks_off()
    for point, error in zip(found.points, errors, strict=True):
        look, place = _look(spec, point), places[point.trial.name]
        if point.no_better_than:
            other = places[point.no_better_than]
            axes.plot([place[0], other[0]], [place[1], other[1]], linestyle=":", color=GREY, linewidth=1, zorder=1)
        face = "white" if point.no_better_than else look.colour
        axes.errorbar(
            *place, yerr=error or None, marker=look.marker, markersize=9, markerfacecolor=face, color=look.colour,
            markeredgecolor=look.colour, capsize=3, linewidth=1.2, zorder=3,
        )  # fmt: skip
        axes.annotate(point.trial.name, place, xytext=(7, 5), textcoords="offset points", fontsize=8, zorder=4)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=14, parse_math=False)
    axes.set_xlabel(cost.title)
    axes.set_ylabel(f"{quality.title} of the {found.split} split, mean of {_seeds(found)} seeds")
    axes.grid(True, color="#e8e8e8", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    figure.legend(handles=_legend(spec, found), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _look(spec: SearchSpec, point: Confirmed) -> Kind:
    return KINDS[spec.trial_config(point.trial.params).recurrence]


def _legend(spec: SearchSpec, found: Confirmation) -> list[object]:
    from matplotlib.lines import Line2D

    kinds = dict.fromkeys(_look(spec, point) for point in found.points)
    entries: list[object] = [
        Line2D([], [], linestyle="", marker=look.marker, color=look.colour, markersize=8, label=look.title)
        for look in kinds
    ]
    if any(point.no_better_than for point in found.points):
        label = "within noise of a cheaper one"
        hollow = Line2D(
            [], [], linestyle=":", marker="o", markerfacecolor="white", color=GREY, markersize=8, label=label
        )
        entries.append(hollow)
    return entries


def _seeds(found: Confirmation) -> str:
    """How many seeds a point has: `3`, or `2 to 3` where some are missing."""
    counts = sorted({len(point.values) for point in found.points})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
