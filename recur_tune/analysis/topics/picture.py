"""The comparison as a picture: each source's divergence from the prompts, and the runs' differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from recur_tune.analysis.topics.comparison import OTHER, TRUTH, Comparison
from recur_tune.report.figures.style import COLOURS, GREY, SYMBOLS, Figure, Panel, layout, plain_axis

_HEIGHT = 460


def panels(found: Comparison) -> list[Panel]:
    """The divergences, and with two runs or more their differences."""
    short = _short([source.name for source in found.sources])
    levels = _figure(
        list(short.values()), [one.mean for one in found.sources], [one.standard_error for one in found.sources],
        "Jensen-Shannon divergence<br>from the prompt's topics, bits",
    )  # fmt: skip
    caption = f"Means with one standard error to either side, over {found.independent}."
    made = [Panel("topics", "How far continuations lie from their prompts", caption, levels, _HEIGHT)]
    if found.differences:
        pairs = [f"{short[one.one]}\nless {short[one.other]}" for one in found.differences]
        means, errors = zip(*((one.mean, one.standard_error) for one in found.differences), strict=True)
        less = _figure(pairs, means, errors, "difference on the same prompts, bits")
        less["layout"]["shapes"] = [{"x0": -0.5, "x1": len(pairs) - 0.5, "y0": 0, "y1": 0}]
        made.append(Panel("differences", "Runs on the same prompts; below 0 the first is nearer", caption, less))
    return made


def _short(names: Sequence[str]) -> dict[str, str]:
    """A run by its folder's own name, where no other has the same."""
    last = {name: Path(name).name for name in names}
    return {name: own if list(last.values()).count(own) == 1 else name for name, own in last.items()}


def _figure(names: Sequence[str], means: Sequence[float], errors: Sequence[float], title: str) -> Figure:
    """A mark for each name, from left to right."""
    traces = []
    for at, (name, mean, error) in enumerate(zip(names, means, errors, strict=True)):
        is_run = name not in (TRUTH, OTHER)
        colour = COLOURS[at % len(COLOURS)] if is_run else GREY
        traces.append({
            "type": "scatter", "mode": "markers", "name": name, "x": [at], "y": [mean],
            "error_y": {"array": [0.0 if math.isnan(error) else error], "color": colour, "thickness": 1.2},
            "marker": {"symbol": SYMBOLS[at % len(SYMBOLS)], "size": 13, "color": colour},
        })  # fmt: skip
    x_axis = plain_axis("", tickvals=list(range(len(names))), ticktext=list(names), range=[-0.5, len(names) - 0.5])
    return {"data": traces, "layout": layout(_HEIGHT, showlegend=False, xaxis=x_axis, yaxis=plain_axis(title))}
