"""Where a state helps, as a picture: the difference in each group, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence

from recur_tune.analysis.look.comparison import DISTANCE, KIND, POSITION, Group
from recur_tune.report.figures.style import COLOURS, SYMBOLS, Figure, Panel, layout, plain_axis

_HEIGHT = 420
_CAPTION = "Nats per token, with one standard error over documents to either side; below 0 the state helps."


def panels(groups: Sequence[Group]) -> list[Panel]:
    """A panel for each way of grouping."""
    return [
        Panel(by, f"By {by}", _CAPTION, _figure([one for one in groups if one.by == by], COLOURS[at], SYMBOLS[at]))
        for at, by in enumerate((DISTANCE, POSITION, KIND))
    ]


def _figure(groups: Sequence[Group], colour: str, symbol: str) -> Figure:
    places, count = list(range(len(groups))), len(groups)
    errors = [0.0 if math.isnan(one.standard_error) else one.standard_error for one in groups]
    trace = {
        "type": "scatter", "mode": "markers", "name": "difference", "x": places,
        "y": [one.difference for one in groups],
        "error_y": {"array": errors, "color": colour, "thickness": 1.2},
        "marker": {"symbol": symbol, "size": 11, "color": colour},
    }  # fmt: skip
    names = [one.name.replace(", ", "\n").replace(" to ", "\nto ") for one in groups]
    x_axis = plain_axis("", tickvals=places, ticktext=names, range=[-0.5, count - 0.5])
    made = layout(_HEIGHT, showlegend=False, xaxis=x_axis, yaxis=plain_axis("recurrent less plain, nats per token"))
    made["shapes"] = [{"x0": -0.5, "x1": count - 0.5, "y0": 0, "y1": 0}]
    return {"data": [trace], "layout": made}
