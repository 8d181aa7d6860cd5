"""The front as further seeds see it: means with their standard errors."""

from __future__ import annotations

import html
import math

from recur_tune.report.figures.confirmed import HEIGHT, confirmed_figure
from recur_tune.report.figures.marks import Panel
from recur_tune.report.reading import SearchView
from recur_tune.search.record.confirmation import Confirmation, ConfirmedTrial, confirmation
from recur_tune.search.record.objectives import OBJECTIVES


def confirmed_panel(search: SearchView) -> Panel:
    """Means over further seeds against the first cost; hollow marks do no better than a cheaper one."""
    key, title = "confirmed", "The front, confirmed with other seeds"
    found = confirmation(search.state, search.spec)
    if found is None:
        return Panel.of_words(key, title, f"Nobody has yet: recur-tune confirm {search.name} trains it again.")
    figure = confirmed_figure(found, search.costs[0], search.kind)
    words = {point.trial.number: _words(found, point) for point in found.points}
    for trace in figure["data"]:
        trace.update(hoverinfo="text", hovertext=[words[number] for number in trace["customdata"]])
    return Panel(key, title, _caption(found), figure, HEIGHT)


def _words(found: Confirmation, point: ConfirmedTrial) -> str:
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
