"""Searches in every state that a front is drawn of, and the marks that trials ask for and that drawings hold."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle

from recur_tune.search.record.state import SearchState, TrialRecord
from tests.search.record import OBJECTIVES, state_of, trial

GREY = "#8c8c8c"
CIRCLE, TRIANGLE = "circle", "triangle-up"  # plotly's names
SHAPES = {CIRCLE: "o", TRIANGLE: "^", "square": "s", "x": "X"}  # and matplotlib's
# By the recurrence of a trial: what its kind is called, its shape and its colour.
STYLES = {
    "none": ("plain", CIRCLE, "#0072b2"), "pooled": ("pooled", TRIANGLE, "#d55e00"),
    "cache": ("cache", "square", "#009e73"), "blocks": ("blocks", "x", "#000000"), None: ("trial", CIRCLE, "#0072b2"),
}  # fmt: skip
STOPPED = ("pruned", "paused")


def many(count: int = 40) -> SearchState:
    """Trials in every state; those of two of the kinds were all stopped early."""
    dice = random.Random(0)
    states = ["complete", "complete", "complete", *STOPPED, "failed", "running", "infeasible"]
    kinds = {state: ["none", "pooled", *(["cache", "blocks"] if state in STOPPED else [])] for state in states}
    return state_of(
        *(
            trial(
                number, None if state in ("failed", "infeasible") else dice.uniform(20, 40), dice.uniform(1e7, 1e9),
                dice.uniform(1e9, 4e10), state, {"recurrence": dice.choice(kinds[state]), "window": 300 + number},
            )
            for number, state in enumerate(dice.choice(states) for _ in range(count))
        )
    )  # fmt: skip


def equal() -> SearchState:
    return state_of(*(trial(number, 30.0, 1e8, 2e9) for number in range(3)))


def one_bad() -> SearchState:
    """Five plain trials, and a recurrent one that is cheap and good for nothing."""
    plain = (
        trial(number, 30.0 - number, 1e8 + 1e7 * number, 2e9, params={"recurrence": "none"}) for number in range(5)
    )
    return state_of(*plain, trial(9, 1e9, 5e7, 2e9, params={"recurrence": "pooled"}))


def stopped_far_off() -> SearchState:
    """Two at full budget between six that were stopped: far above, far dearer, far cheaper, too high by a little, and
    as near as the two are to each other: above and dearer, and cheaper."""
    far = ((90.0, 1.5e8, 3e9), (31.0, 9e9, 9e10), (32.0, 1e6, 1e8), (33.0, 1.5e8, 3e9))
    near = ((31.9, 3.9e8, 7.8e9), (30.5, 5.1e7, 1.1e9))
    stopped = (trial(number, *values, STOPPED[number % 2]) for number, values in enumerate((*far, *near)))
    return state_of(*stopped, trial(8, 30.0, 2e8, 4e9), trial(9, 31.0, 1e8, 2e9))


def crowd() -> SearchState:
    """A front among many trials that were stopped right beside it."""
    dice = random.Random(0)
    best = [trial(number, 40.0 - number, 1e8 + 1e7 * number, 2e9) for number in range(10)]
    around = [(one.metrics["perplexity"], one.costs["flops_per_token"]) for one in best for _ in range(16)]
    stopped = (
        trial(10 + at, up + dice.uniform(-0.6, 0.6), across + dice.uniform(-6e6, 6e6), 2e9, STOPPED[at % 2])
        for at, (up, across) in enumerate(around)
    )
    return state_of(*best, *stopped)


def hardly_too_high() -> SearchState:
    """The last is worse than the axes make room for, but by less than the room that is left around the others."""
    qualities = (20.0, 25.0, 25.0, 25.0, 25.0, 25.0, 39.9, 40.5)
    return state_of(*(trial(number, quality, 2e8 - 1e7 * number, 2e9) for number, quality in enumerate(qualities)))


STATES = {
    "none": state_of(),
    "unfinished": state_of(trial(0, None, 1e8, 2e9, "running"), trial(1, 40, 1e8, 2e9, "failed")),
    "only stopped": state_of(trial(0, 40, 1e8, 2e9, "pruned"), trial(1, 50, 2e8, 3e9, "paused")),
    "one": state_of(trial(0, 30, 1e8, 2e9, params={"recurrence": "pooled"})),
    "equal": equal(),
    "not finite": state_of(trial(0, math.nan, 1e8, 2e9), trial(1, 30, 1e8, 2e9), trial(2, math.inf, 1e8, 2e9)),
    "one bad": one_bad(),
    "stopped far off": stopped_far_off(),
    "hardly too high": hardly_too_high(),
    "many": many(),
}
for found in (one for state in STATES.values() for one in state.trials.values()):
    for validation in found.validations:  # a second quality, which orders trials otherwise than the first
        validation.metrics["token_perplexity"] = 5.0 + found.number * 7 % 11
# What a search minimises, and which of it is across, up and in colour.
CHOICES: dict[tuple[str, ...], tuple[str, str, str | None]] = {
    OBJECTIVES: ("flops_per_token", "perplexity", "peak_memory"),
    OBJECTIVES[:2]: ("flops_per_token", "perplexity", None),
    ("peak_memory", "perplexity"): ("peak_memory", "perplexity", None),
    ("perplexity", "token_perplexity"): ("token_perplexity", "perplexity", None),
}


class Mark(NamedTuple):
    """A trial as a picture shows it."""

    place: tuple[float, float]
    look: str  # front, beaten or stopped
    shape: str
    colour: float | str  # its own, or the number that it stands for


def ended(name: str, objectives: Sequence[str]) -> list[TrialRecord]:
    """The trials that a picture is of: at full budget or stopped before, and all their values are numbers."""
    found = (one for one in STATES[name].trials.values() if one.state in ("complete", *STOPPED))
    return [one for one in found if np.isfinite([value(one, objective) for objective in objectives]).all()]


def value(one: TrialRecord, objective: str) -> float:
    known = one.value(objective)
    return math.nan if known is None else known


def beaten(one: TrialRecord, others: Sequence[TrialRecord], objectives: Sequence[str]) -> bool:
    """Whether another at full budget is nowhere worse and somewhere better."""
    own = [value(one, objective) for objective in objectives]
    rivals = ([value(other, objective) for objective in objectives] for other in others if other.state == "complete")
    return any(rival != own and all(np.less_equal(rival, own)) for rival in rivals)


def look(one: TrialRecord, others: Sequence[TrialRecord], objectives: Sequence[str]) -> str:
    if one.state in STOPPED:
        return "stopped"
    own = [value(one, objective) for objective in objectives]
    same = [other.number for other in others if [value(other, objective) for objective in objectives] == own
            and other.state == "complete"]  # fmt: skip
    return "beaten" if beaten(one, others, objectives) or one.number > min(same) else "front"


def place(one: TrialRecord, objectives: tuple[str, ...]) -> tuple[float, float]:
    across, up, _ = CHOICES[objectives]
    return value(one, across), value(one, up)


def marks_of_trials(name: str, objectives: tuple[str, ...]) -> Counter[Mark]:
    """What the trials' own numbers ask for."""
    trials, colour, marks = ended(name, objectives), CHOICES[objectives][2], Counter[Mark]()
    for one in trials:
        _, shape, own = STYLES[one.params.get("recurrence")]
        if colour:
            own = GREY if one.state in STOPPED else round(math.log10(value(one, colour)), 9)
        marks[Mark(place(one, objectives), look(one, trials, objectives), shape, own)] += 1
    return marks


def lines_of_trials(name: str, objectives: tuple[str, ...]) -> dict[str, list[tuple[float, float]]]:
    """By style: from cheap to good the trials of a kind that no other of that kind beats in the two axes."""
    lines = {}
    for kind, style in (("none", "--"), ("pooled", "-"), (None, "-")):
        own = [one for one in ended(name, objectives) if one.state == "complete"]
        own = [one for one in own if one.params.get("recurrence") == kind]
        best = [one for one in own if not beaten(one, own, CHOICES[objectives][:2])]
        if best:
            lines[style] = sorted(place(one, objectives) for one in best)
    return lines


def marks_of_picture(figure: Figure) -> Counter[Mark]:
    """What the picture's own collections hold; numbers that colours stand for are logarithms, as the page's are."""
    marks = Counter[Mark]()
    for collection in drawn_marks(figure):
        numbers = collection.get_array()
        for at, (x, y) in enumerate(places(collection)):
            colour = colour_of(collection) if numbers is None else round(float(numbers[at]), 9)
            marks[Mark((x, y), look_of(collection), shape_of(collection), colour)] += 1
    return marks


def drawn_marks(figure: Figure) -> list[PathCollection]:
    """Marks with a place; others are in the legend alone."""
    return [collection for collection in figure.axes[0].collections if len(collection.get_offsets())]


def colour_of(collection: PathCollection) -> str:
    """The one of all its marks, inside or, where they are hollow, at their edge."""
    inside = collection.get_facecolors()
    [colour] = {to_hex(one) for one in (inside if len(inside) else collection.get_edgecolors())}
    return colour


def places(collection: PathCollection) -> list[list[float]]:
    assert collection.get_offset_transform() == collection.axes.transData, "places are in the axes' own numbers"
    return np.ma.getdata(collection.get_offsets()).tolist()


def look_of(collection: PathCollection) -> str:
    """By inside, edge, strength and size, which are the same for all its marks."""
    [width], [size] = collection.get_linewidths(), collection.get_sizes()
    hollow = collection.get_array() is None and not len(collection.get_facecolors())
    edged = width > 0 and not hollow
    assert not edged or all(tuple(edge) == (0, 0, 0, 1) for edge in collection.get_edgecolors()), "an edge is black"
    faint, small = collection.get_alpha() < 0.7, size < 36
    looks = {(False, True, False): "front", (False, False, True): "beaten", (True, False, True): "stopped"}
    assert small == faint
    return looks[hollow, edged, faint]


def shape_of(collection: PathCollection) -> str:
    [path] = collection.get_paths()
    styles = {shape: MarkerStyle(marker) for shape, marker in SHAPES.items()}
    outlines = {shape: style.get_path().transformed(style.get_transform()) for shape, style in styles.items()}
    [shape] = [shape for shape, outline in outlines.items() if np.array_equal(outline.vertices, path.vertices)]
    return shape


def shares(figure: Figure, marks: Sequence[Mark]) -> np.ndarray:
    """Where marks lie between the ends of the two axes, from 0 to 1; beyond them outside."""
    axes = figure.axes[0]
    pixels = axes.transData.transform([mark.place for mark in marks] or np.empty((0, 2)))
    return axes.transAxes.inverted().transform(pixels)


def marks_of_page(traces: Iterable[Any]) -> Counter[Mark]:
    """What a page's own traces hold; numbers that colours stand for are logarithms."""
    marks = Counter[Mark]()
    for trace in placed(traces):
        marker = trace.marker
        hollow = marker.symbol.endswith("-open")
        look = "stopped" if hollow else "front" if marker.line.color == "black" else "beaten"
        assert (marker.opacity < 0.7) == (look != "front")
        own = marker.color
        colours = [own] * len(trace.x) if isinstance(own, str) else [round(one, 9) for one in own]
        for x, y, colour in zip(trace.x, trace.y, colours, strict=True):
            marks[Mark((x, y), look, marker.symbol.removesuffix("-open"), colour)] += 1
    return marks


def placed(traces: Iterable[Any]) -> list[Any]:
    """The marks of a page; those without a place are in the legend alone."""
    return [one for one in traces if "markers" in one.mode and one.x != (None,)]
