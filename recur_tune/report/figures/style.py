"""Style of all figures: shapes, colours, axes and layout.

A figure is the plain JSON that plotly.js draws, so that making one needs no library and a test can read it. A shape, a
pattern or a word always says the same as a colour.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recur_tune.recurrences.registry import MARKS, NONE
from recur_tune.search.record.objectives import OBJECTIVES, Objective
from recur_tune.search.record.state import TrialRecord

Figure = dict[str, Any]

GREY, INK, GRID = "#8c8c8c", "#1f2328", "#ebebeb"
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif", "size": 13}
_BAR_TICK = 0.24  # of a colour bar, which a tick's words may take in a narrow figure
_LOG_FROM = 4  # an axis whose ends are further apart than this factor is logarithmic


@dataclass(frozen=True)
class Panel:
    """A figure with title and caption; or, where nothing can be drawn, a text that says why."""

    key: str
    title: str
    caption: str
    figure: Figure | None
    height: int = 0  # pixels
    min_width: int = 0  # below it the reader scrolls
    printed: Figure | None = None  # the version for paper, where it cannot be printed itself

    @classmethod
    def of_words(cls, key: str, title: str, words: str) -> Panel:
        """A text instead of an empty figure."""
        return cls(key, title, words, None)


@dataclass(frozen=True)
class MarkerStyle:
    """How the trials of one recurrence are drawn."""

    title: str
    symbol: str
    dash: str
    colour: str  # from a palette for colour-blind readers


STYLES = {
    name: MarkerStyle(mark.word, mark.symbol, "dash" if name == NONE else "solid", mark.colour)
    for name, mark in MARKS.items()
}
DEFAULT_STYLE = MarkerStyle("trial", "circle", "solid", "#0072b2")  # where the search does not choose the recurrence
# By search, where several share a figure.
SYMBOLS = ("circle", "triangle-up", "square", "diamond", "cross", "star", "pentagon", "x")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


def layout(height: int, top: int = 32, **parts: Any) -> Figure:
    """The layout of a figure so many pixels high: white, with the legend right below its axis."""
    return {
        "font": {**FONT, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 60, "r": 16, "t": top, "b": 48},
        "legend": {"orientation": "h", "yanchor": "top", "y": -56 / (height - top - 90), "x": 0, "font": {"size": 12}},
        "hoverlabel": {"align": "left", "bgcolor": "white", "font": {**FONT, "size": 12, "color": INK}},
        "hovermode": "closest",
        **parts,
    }


def plain_axis(title: str, **parts: Any) -> Figure:
    """An axis with an automatic range."""
    return {
        "title": {"text": title, "standoff": 8}, "gridcolor": GRID, "zeroline": False, "linecolor": GREY,
        "automargin": True, **parts,
    }  # fmt: skip


def axis(objective: Objective, values: Sequence[float], log: bool | None = None, fixed: bool = False) -> Figure:
    """An axis for an objective with a margin around its values; by default logarithmic where they are far apart.

    Its ticks are plotly's own where possible, which follow a zoom, unless they are `fixed`.
    """
    low, high, is_log = span(values, log)
    ends = [math.log10(low), math.log10(high)] if is_log else [low, high]
    return plain_axis(
        objective.title, type="log" if is_log else "linear", range=ends, **ticks(objective, low, high, is_log, fixed)
    )


def colour_axis(objective: Objective, values: Sequence[float], wide: float = 0.5) -> Figure:
    """A horizontal colour bar above the figure, as wide as this share of it, which fits a phone; `colour_values` gives
    its numbers."""
    low, high, _ = span(values, log=True)
    marks, room = ticks(objective, low, high, log=True), _BAR_TICK * math.log10(high / low)
    shown: list[int] = []
    for at, place in enumerate(colour_values(marks["tickvals"])):
        if not shown or place - math.log10(marks["tickvals"][shown[-1]]) >= room:
            shown.append(at)
    places, words = ([marks[part][at] for at in shown] for part in ("tickvals", "ticktext"))
    # From y = 1 on, plotly.js 4.1 lifts every title to make room for the bar's, the horizontal axis's into its numbers.
    bar = {
        "title": {"text": objective.title, "side": "top"}, "orientation": "h", "thickness": 10, "len": wide, "x": 1,
        "xanchor": "right", "y": 0.9999, "yanchor": "bottom", "outlinewidth": 0, "ticktext": words,
        "tickvals": colour_values(places),
    }  # fmt: skip
    return {"colorscale": "Viridis", "cmin": math.log10(low), "cmax": math.log10(high), "colorbar": bar}


def colour_values(values: Sequence[float]) -> list[float]:
    """Logarithms for a colour axis: plotly has no logarithmic colours."""
    return [math.log10(value) for value in values]


def span(values: Sequence[float], log: bool | None = None) -> tuple[float, float, bool]:
    """The range of an axis with a margin, and whether it is logarithmic."""
    low, high = min(values), max(values)
    if log is None:
        log = low > 0 and high / low > _LOG_FROM
    if log:
        room = max((high / low) ** 0.06, 1.02)
        return low / room, high * room, True
    # Values that hardly differ need more room, or all ticks would get the same label.
    room = 0.06 * (high - low) if high - low > 0.01 * abs(high) else 0.05 * abs(high) or 1.0
    return low - room, high + room, False


def ticks(objective: Objective, low: float, high: float, log: bool, fixed: bool = False) -> Figure:
    """Round tick values in the objective's unit; plotly's own where those are right and need not be fixed."""
    binary = objective.unit.is_binary
    if not (binary or log or fixed):
        return {"tickformat": "~s" if high >= 1e4 else "", "nticks": 8}
    if log and high / low > _LOG_FROM:
        close = (1, 1.5, 2, 3, 5, 7) if high / low < 15 else (1, 2, 5)
        places = round_powers(low, high, 2 if binary else 10, close)
    else:
        places = _even(low, high, 1024 ** max(0, math.floor(math.log(max(high, 1), 1024))) if binary else 1)
    shown = [place for place in places if low <= place <= high]
    return {"tickvals": shown, "ticktext": [objective.format(place) for place in shown]}


def round_powers(low: float, high: float, base: int, digits: Sequence[float] = (1, 2, 5)) -> list[float]:
    """At most eight powers of the base; of ten also these multiples of them while there are few."""
    exponents = range(math.floor(math.log(low, base)), math.ceil(math.log(high, base)) + 1)
    if base == 10 and len(exponents) <= 4:
        return [digit * 10.0**exponent for exponent in exponents for digit in digits]
    return [float(base) ** exponent for exponent in exponents[:: len(exponents) // 8 + 1]]


def _even(low: float, high: float, unit: int) -> list[float]:
    """Four to eight numbers, as far apart as a round number of units."""
    wide = (high - low) / unit
    power = 10.0 ** math.floor(math.log10(wide))
    step = unit * next(digit * power for digit in (0.1, 0.2, 0.5, 1, 2) if wide / (digit * power) <= 7)
    return [at * step for at in range(math.floor(low / step), math.ceil(high / step) + 1)]


def usual_top(values: Sequence[float]) -> float:
    """Upper end of a quality's axis: outliers above it would flatten the rest; up to twice the best, all are shown."""
    lowest, usual = min(values), float(np.quantile(values, 0.75, method="lower"))
    return max(usual + 3 * (usual - lowest), 2 * lowest if lowest > 0 else lowest)


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def hover_lines(trial: TrialRecord, stood: str, objectives: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """A trial's hover text: its name and state, how far it `stood`, what it reached, and its parameters."""
    lines = [f"<b>{trial.name}</b> {trial.state}{f' ({trial.role})' if trial.role else ''}{stood}"]
    for objective in (OBJECTIVES[name] for name in objectives):
        if (value := trial.value(objective.name)) is not None:
            before = trial.untrained.get(objective.name)
            at_first = "" if before is None else f" (before training {objective.format(before)})"
            lines.append(f"{objective.title}: {objective.format(value)}{at_first}")
    return lines + [f"{html.escape(name)} = {html.escape(short(value))}" for name, value in params.items()]


def short(value: Any) -> str:
    """A parameter's value as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
