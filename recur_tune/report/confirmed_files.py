"""A confirmed front as a picture beside its search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recur_tune.report.figures.confirmed import confirmed_figure as figure_of
from recur_tune.report.figures.marks import GREY, KINDS
from recur_tune.report.figures.pictures import MARKERS, plot
from recur_tune.report.front_files import outside_legend, picture, write_png
from recur_tune.search.record.confirmation import Confirmation
from recur_tune.search.record.objectives import COSTS, OBJECTIVES
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import TrialRecord

if TYPE_CHECKING:  # it takes a while to import, and most commands draw nothing
    from matplotlib.figure import Figure


def draw_confirmation(title: str, spec: SearchSpec, found: Confirmation, path: Path) -> Path:
    """Write a confirmed front as a PNG."""
    write_png(confirmed_figure(title, spec, found), path)
    return path


def confirmed_figure(title: str, spec: SearchSpec, found: Confirmation) -> Figure:
    """Draw means against the first cost."""

    def kind_of(trial: TrialRecord) -> str:
        return spec.trial_config(trial.params).recurrence

    figure, axes = picture(title)
    cost = next(OBJECTIVES[name] for name in spec.objectives if name in COSTS)
    plot(axes, figure_of(found, cost, kind_of, fixed=True))
    outside_legend(figure, _legend({kind_of(point.trial) for point in found.points}, found))
    return figure


def _legend(kinds: set[str], found: Confirmation) -> list[object]:
    from matplotlib.lines import Line2D

    entries: list[object] = [
        Line2D([], [], linestyle="", marker=MARKERS[look.symbol], color=look.colour, markersize=8, label=look.title)
        for kind, look in KINDS.items() if kind in kinds
    ]  # fmt: skip
    if any(point.no_better_than for point in found.points):
        label = "no better than a cheaper one"
        entries.append(
            Line2D([], [], linestyle=":", marker="o", markerfacecolor="white", color=GREY, markersize=8, label=label)
        )
    return entries
