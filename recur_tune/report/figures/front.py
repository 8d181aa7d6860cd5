"""The front as a figure: quality against cost, a mark for each trial, a line along the best of each group.

Shape is the group of a trial, a large mark with a black edge is on the front, a hollow mark is not at full budget.
Colour only adds a second cost, so a colour-blind reader loses nothing else. Pages show the figure as it is, and
`pictures` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from recur_tune.report.figures.style import (
    DEFAULT_STYLE,
    GREY,
    GRID,
    STYLES,
    Figure,
    MarkerStyle,
    axis,
    colour_axis,
    colour_values,
    layout,
    usual_top,
)
from recur_tune.search.record.front import non_dominated
from recur_tune.search.record.objectives import Objective
from recur_tune.search.record.state import TrialRecord, values_of

EDGE: Figure = {"width": 0.8, "color": "#555555"}  # yellow on white would be lost without it
_LINE = "#555555"  # where colours say something else
_BEATEN = {"size": 9, "opacity": 0.4}
_BEST = {"size": 15, "opacity": 1, "line": {"width": 1.8, "color": "black"}}
_STOPPED_TITLE = "not at full budget"  # it stands where it stood last
_STOPPED = {"size": 8, "opacity": 0.6}


@dataclass(frozen=True)
class Group:
    """Trials with one shape: of one recurrence, or of one search among several."""

    look: MarkerStyle
    best: Sequence[TrialRecord]  # on the front
    beaten: Sequence[TrialRecord]  # at full budget
    stopped: Sequence[TrialRecord] = ()  # before it

    def along(self, x: Objective, y: Objective) -> list[TrialRecord]:
        """The group's non-dominated trials at full budget in the two axes, the cheapest first."""
        own = [*self.best, *self.beaten]
        if not own:
            return []
        places = np.column_stack([values_of(own, x), values_of(own, y)])
        chosen = [trial for trial, best in zip(own, non_dominated(places), strict=True) if best]
        return sorted(chosen, key=lambda trial: trial.values([x.name, y.name]) or [])


def by_kind(
    complete: Iterable[TrialRecord],
    best: Iterable[TrialRecord],
    stopped: Sequence[TrialRecord],
    kind_of: Callable[[TrialRecord], str | None],
) -> list[Group]:
    """The trials by recurrence; one group where the search does not choose it."""
    on_front = {trial.number: trial for trial in best}
    beaten = [trial for trial in complete if trial.number not in on_front]
    groups = [
        Group(
            look, *([one for one in trials if kind_of(one) == kind] for trials in (on_front.values(), beaten, stopped))
        )
        for kind, look in [*STYLES.items(), (None, DEFAULT_STYLE)]
    ]
    return [group for group in groups if group.best or group.beaten or group.stopped]


@dataclass(frozen=True)
class Front:
    """The trials to draw, and the axes."""

    x: Objective
    y: Objective
    colour: Objective | None
    groups: list[Group]

    @property
    def complete(self) -> list[TrialRecord]:
        """Every trial at full budget."""
        return [trial for group in self.groups for trial in (*group.best, *group.beaten)]

    @property
    def stopped(self) -> list[TrialRecord]:
        """Every trial that was stopped before it."""
        return [trial for group in self.groups for trial in group.stopped]

    @cached_property
    def in_view(self) -> list[TrialRecord]:
        """The trials that set the range of the axes, without outliers that would squeeze the others together.

        Trials that were stopped early may double the range of the complete ones, or extend it to the median of all.
        """
        known = self.complete or self.stopped
        if not known:
            return []
        worst = usual_top(values_of(known, self.y))
        shown = [trial for trial in known if values_of([trial], self.y)[0] <= worst]
        if not self.complete:
            return shown
        x, y = values_of(shown, self.x), values_of(shown, self.y)
        half = float(np.median(values_of([*self.complete, *self.stopped], self.y)))
        top = max(2 * max(y) - min(y), min(half, worst))
        left, right = _again_as_wide(min(x), max(x))
        near = [left <= across <= right and up <= top for across, up in self.positions(self.stopped)]
        return [*shown, *(trial for trial, is_near in zip(self.stopped, near, strict=True) if is_near)]

    def positions(self, trials: Sequence[TrialRecord]) -> list[tuple[float, float]]:
        """Coordinates of trials in the two axes."""
        return list(zip(values_of(trials, self.x), values_of(trials, self.y), strict=True))

    def axes(self, fixed: bool = False) -> Figure:
        """The axes with room for the trials in view, and the colours of all."""
        shown = self.in_view
        made = {
            "xaxis": axis(self.x, values_of(shown, self.x), fixed=fixed),
            "yaxis": axis(self.y, values_of(shown, self.y), log=False, fixed=fixed),
        }
        if self.colour and self.complete:
            made["coloraxis"] = colour_axis(self.colour, values_of(self.complete, self.colour))
        return made

    def figure(self, height: int, top: int, edge: Figure | None = None, fixed: bool = False) -> Figure:
        """All of it, so many pixels high; names are placed when it is drawn. Without any trial it is empty."""
        axes = self.axes(fixed) if self.in_view else {}
        return {"data": [*self.traces(edge), *self.legend()], "layout": layout(height, top, **axes)}

    def traces(self, edge: Figure | None = None) -> list[Figure]:
        """Stopped trials, lines, dominated trials with this edge, and on top the front with its names."""
        beaten = _BEATEN | ({"line": edge} if edge else {})
        made = [self._hollow(group) for group in self.groups]
        made += [self._line(group) for group in self.groups]
        for group in self.groups:
            made.append(self._marks(group, group.beaten, f"{group.look.title}, beaten", beaten))
        for group in self.groups:
            names = {
                "mode": "markers+text", "text": [trial.name for trial in group.best], "textposition": "top right",
                "textfont": {"size": 11}, "cliponaxis": False,
            }  # fmt: skip
            made.append(self._marks(group, group.best, f"{group.look.title}, on the front", _BEST) | names)
        return [trace for trace in made if trace["x"]]

    def legend(self) -> list[Figure]:
        """Entries of the legend: one for each group, which shows and hides it, and one for each other meaning of a
        mark."""
        kinds = [
            entry(look.title, marker={"symbol": look.symbol, "color": self._own_colour(look), "size": 11})
            | {"legendgroup": look.title}
            for look in (group.look for group in self.groups)
        ]
        groups, of_any = self.groups, {"symbol": "circle", "color": _LINE}
        others = (
            (any(one.best for one in groups), "on the front", {"marker": of_any | _BEST | {"color": GRID}}),
            (any(one.beaten for one in groups), "complete, but beaten", {"marker": of_any | _BEATEN}),
            (self.stopped, _STOPPED_TITLE, {"marker": of_any | _STOPPED | {"symbol": "circle-open"}}),
        )
        return [*kinds, *self._lines_of_legend(), *(entry(title, **look) for there, title, look in others if there)]

    def _lines_of_legend(self) -> Iterator[Figure]:
        """An entry for each style of line; one trial alone has none."""
        drawn = [group.look for group in self.groups if len(group.along(self.x, self.y)) > 1]
        for dash in dict.fromkeys(look.dash for look in drawn):
            alike = [look.title for look in drawn if look.dash == dash]
            whose = "" if len(self.groups) == 1 else f"{alike[0]} " if len(alike) == 1 else "of its kind "
            line = {"color": _LINE, "width": 1.2, "dash": dash}
            yield entry(f"best {whose}for a cost", mode="lines", line=line)

    def _own_colour(self, look: MarkerStyle) -> str:
        return _LINE if self.colour else look.colour

    def _hollow(self, group: Group) -> Figure:
        """A group's stopped trials, at their last values."""
        look = group.look
        colour = GREY if self.colour else look.colour
        marker = {"symbol": f"{look.symbol}-open", "color": colour, **_STOPPED}
        return points(group.stopped, self.x, self.y, f"{look.title}, {_STOPPED_TITLE}", marker=marker) | _of(look)

    def _line(self, group: Group) -> Figure:
        """Along the best of a group: a step, since nothing is known between two trials."""
        along, look = group.along(self.x, self.y), group.look
        return {
            "type": "scatter", "mode": "lines", "name": f"{look.title}: best for a cost", "hoverinfo": "skip",
            "x": values_of(along, self.x), "y": values_of(along, self.y),
            "line": {"shape": "hv", "dash": look.dash, "color": self._own_colour(look), "width": 1.2},
            **_of(look),
        }  # fmt: skip

    def _marks(self, group: Group, trials: Sequence[TrialRecord], name: str, marker: Figure) -> Figure:
        own: Figure = {"color": group.look.colour}
        if self.colour:
            own = {"color": colour_values(values_of(trials, self.colour)), "coloraxis": "coloraxis"}
        symbol = {"symbol": group.look.symbol}
        return points(trials, self.x, self.y, name, marker=symbol | marker | own) | _of(group.look)


def _of(look: MarkerStyle) -> Figure:
    """A trace is shown and hidden with its group's entry in the legend."""
    return {"legendgroup": look.title, "showlegend": False}


def entry(title: str, **look: Any) -> Figure:
    """An entry of the legend alone."""
    return {"type": "scatter", "mode": "markers", "name": title, "x": [None], "y": [None], **look}


def _again_as_wide(low: float, high: float) -> tuple[float, float]:
    """A range extended to either side by its own factor, at least by two."""
    if low <= 0:
        return -math.inf, 2 * high - low
    factor = max(high / low, 2)
    return low / factor, high * factor


def points(trials: Sequence[TrialRecord], x: Objective, y: Objective, name: str, **look: Any) -> Figure:
    """Trials as marks; a page adds their hover texts."""
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": values_of(trials, x), "y": values_of(trials, y),
        "customdata": [trial.number for trial in trials], **look,
    }  # fmt: skip
