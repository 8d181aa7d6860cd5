"""The front as a figure: quality against cost, a mark for each trial, a line along the best of each group.

Shape says which group a trial belongs to, size and a black edge that it is on the front; colour only adds a second
cost, so that those who see it differently lose nothing else. Pages show the figure as it is, and `pictures` draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recur_tune.drawing.marks import (
    KINDS,
    OF_ANY_KIND,
    Figure,
    Kind,
    axis,
    colour_axis,
    colour_values,
    names_with_room,
)
from recur_tune.searching.front import non_dominated
from recur_tune.searching.objectives import Objective
from recur_tune.searching.state import TrialRecord, values_of

EDGE = {"width": 0.8, "color": "#555555"}  # yellow on white would be lost without it
_LINE = "#555555"  # where colours say something else


@dataclass(frozen=True)
class Group:
    """Trials at full budget that are drawn alike: those of one kind, or of one search among several."""

    look: Kind
    best: Sequence[TrialRecord]  # on the front
    beaten: Sequence[TrialRecord]

    def along(self, x: Objective, y: Objective) -> list[TrialRecord]:
        """From cheap to good, those that no other of the group beats in the two axes."""
        own = [*self.best, *self.beaten]
        places = np.column_stack([values_of(own, x), values_of(own, y)])
        chosen = [trial for trial, best in zip(own, non_dominated(places), strict=True) if best]
        return sorted(chosen, key=lambda trial: trial.values([x.name, y.name]) or [])


def by_kind(
    complete: Iterable[TrialRecord], best: Iterable[TrialRecord], kind_of: Callable[[TrialRecord], str | None]
) -> list[Group]:
    """The trials at full budget by their kind of recurrence; those of a kind that nobody decided are one group."""
    on_front = {trial.number: trial for trial in best}
    beaten = [trial for trial in complete if trial.number not in on_front]
    groups = [
        Group(look, *([trial for trial in trials if kind_of(trial) == kind] for trials in (on_front.values(), beaten)))
        for kind, look in [*KINDS.items(), (None, OF_ANY_KIND)]
    ]
    return [group for group in groups if group.best or group.beaten]


@dataclass(frozen=True)
class Front:
    """What there is to draw at full budget, and along which axes."""

    x: Objective
    y: Objective
    colour: Objective | None
    groups: list[Group]

    @property
    def complete(self) -> list[TrialRecord]:
        """Every trial of every group."""
        return [trial for group in self.groups for trial in (*group.best, *group.beaten)]

    def axes(self, shown: Sequence[TrialRecord], fixed: bool = False) -> Figure:
        """The axes with room for some trials, and the colours of all."""
        made = {
            "xaxis": axis(self.x, values_of(shown, self.x), fixed=fixed),
            "yaxis": axis(self.y, values_of(shown, self.y), log=False, fixed=fixed),
        }
        if self.colour and self.complete:
            made["coloraxis"] = colour_axis(self.colour, values_of(self.complete, self.colour))
        return made

    def traces(self, edge: Figure | None = None) -> list[Figure]:
        """Lines, the beaten trials with this edge, and the front with its names on top."""
        beaten = {"size": 9, "opacity": 0.4, **({"line": edge} if edge else {})}
        best = {"size": 15, "opacity": 1, "line": {"width": 1.8, "color": "black"}}
        made = [self._line(group) for group in self.groups]
        for group in self.groups:
            made.append(self._marks(group, group.beaten, f"{group.look.title}, beaten", beaten))
        for group in self.groups:
            names = {
                "mode": "markers+text", "text": [trial.name for trial in group.best], "textposition": "top right",
                "textfont": {"size": 11}, "cliponaxis": False,
            }  # fmt: skip
            made.append(self._marks(group, group.best, f"{group.look.title}, on the front", best) | names)
        return [trace for trace in made if trace["x"]]

    def _line(self, group: Group) -> Figure:
        """Along the best of a group: a step, since nothing is promised between two trials."""
        along, look = group.along(self.x, self.y), group.look
        colour = _LINE if self.colour else look.colour
        return {
            "type": "scatter", "mode": "lines", "name": f"{look.title}: best for a cost", "hoverinfo": "skip",
            "x": values_of(along, self.x), "y": values_of(along, self.y),
            "line": {"shape": "hv", "dash": look.dash, "color": colour, "width": 1.2},
        }  # fmt: skip

    def _marks(self, group: Group, trials: Sequence[TrialRecord], name: str, marker: Figure) -> Figure:
        own: Figure = {"color": group.look.colour}
        if self.colour:
            own = {"color": colour_values(values_of(trials, self.colour)), "coloraxis": "coloraxis"}
        return points(trials, self.x, self.y, name, marker={"symbol": group.look.symbol, **marker, **own})


def points(trials: Sequence[TrialRecord], x: Objective, y: Objective, name: str, **look: Any) -> Figure:
    """Trials as marks; a page shows what it knows of them under the pointer."""
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": values_of(trials, x), "y": values_of(trials, y),
        "customdata": [trial.number for trial in trials], **look,
    }  # fmt: skip


def thin_names(traces: Iterable[Figure], x_axis: Figure) -> None:
    """Leave out the names that would cover a neighbour's."""
    named = [trace for trace in traces if "text" in trace]
    names, x, y = ([one for trace in named for one in trace[part]] for part in ("text", "x", "y"))
    kept = iter(names_with_room(names, x, y, x_axis))
    for trace in named:
        trace["text"] = [next(kept) for _ in trace["text"]]
