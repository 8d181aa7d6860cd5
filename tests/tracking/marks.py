"""Searches in every state that a front is drawn of, and the marks that trials ask for and that drawings hold."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle

from recur_tune.searching.state import SearchState, TrialRecord
from tests.searching import OBJECTIVES, state_of, trial

GREY = "#8c8c8c"
CIRCLE, TRIANGLE = "circle", "triangle-up"  # plotly's names


def many(count: int = 40) -> SearchState:
    """Trials of every kind and state."""
    dice = random.Random(0)
    states = ["complete", "complete", "pruned", "failed", "running", "infeasible"]
    return state_of(
        *(
            trial(
                number, None if state in ("failed", "infeasible") else dice.uniform(20, 40), dice.uniform(1e7, 1e9),
                dice.uniform(1e9, 4e10), state, {"recurrence": dice.choice(["none", "pooled"]), "window": 300 + number},
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


def pruned_far_off() -> SearchState:
    """Two at full budget between four that were pruned: far above, far dearer, far cheaper, and in their midst."""
    far = ((90.0, 1.5e8, 3e9), (31.0, 9e9, 9e10), (32.0, 1e6, 1e8), (30.5, 1.5e8, 3e9))
    pruned = (trial(number, *values, "pruned") for number, values in enumerate(far))
    return state_of(*pruned, trial(8, 30.0, 2e8, 4e9), trial(9, 31.0, 1e8, 2e9))


def hardly_too_high() -> SearchState:
    """The last is worse than the axes make room for, but by less than the room that is left around the others."""
    qualities = (20.0, 25.0, 25.0, 25.0, 25.0, 25.0, 39.9, 40.5)
    return state_of(*(trial(number, quality, 2e8 - 1e7 * number, 2e9) for number, quality in enumerate(qualities)))


STATES = {
    "none": state_of(),
    "unfinished": state_of(trial(0, None, 1e8, 2e9, "running"), trial(1, 40, 1e8, 2e9, "failed")),
    "only pruned": state_of(trial(0, 40, 1e8, 2e9, "pruned")),
    "one": state_of(trial(0, 30, 1e8, 2e9, params={"recurrence": "pooled"})),
    "equal": equal(),
    "not finite": state_of(trial(0, math.nan, 1e8, 2e9), trial(1, 30, 1e8, 2e9), trial(2, math.inf, 1e8, 2e9)),
    "one bad": one_bad(),
    "pruned far off": pruned_far_off(),
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
    look: str  # front, beaten or pruned
    shape: str
    colour: float | None  # the number that its colour stands for


def ended(name: str, objectives: Sequence[str]) -> list[TrialRecord]:
    """The trials that a picture is of: at full budget or pruned before, and all their values are numbers."""
    found = (one for one in STATES[name].trials.values() if one.state in ("complete", "pruned"))
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
    return "pruned" if one.state == "pruned" else "beaten" if beaten(one, others, objectives) else "front"


def place(one: TrialRecord, objectives: tuple[str, ...]) -> tuple[float, float]:
    across, up, _ = CHOICES[objectives]
    return value(one, across), value(one, up)


def marks_of_trials(name: str, objectives: tuple[str, ...]) -> Counter[Mark]:
    """What the trials' own numbers ask for."""
    trials, colour, marks = ended(name, objectives), CHOICES[objectives][2], Counter[Mark]()
    for one in trials:
        recurrent = one.params.get("recurrence") == "pooled"
        shape, colour_value = TRIANGLE if recurrent else CIRCLE, value(one, colour) if colour else None
        if one.state == "pruned":
            shape, colour_value = CIRCLE, None
        marks[Mark(place(one, objectives), look(one, trials, objectives), shape, colour_value)] += 1
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
    """What the picture's own collections hold; their colours are logarithms, as the page's are."""
    marks = Counter[Mark]()
    for collection in figure.axes[0].collections:
        colours = collection.get_array()
        for at, (x, y) in enumerate(places(collection)):
            colour = None if colours is None else round(float(colours[at]), 9)
            marks[Mark((x, y), look_of(collection), shape_of(collection), colour)] += 1
    return marks


def places(collection: PathCollection) -> list[list[float]]:
    assert collection.get_offset_transform() == collection.axes.transData, "places are in the axes' own numbers"
    return np.ma.getdata(collection.get_offsets()).tolist()


def look_of(collection: PathCollection) -> str:
    """By edge, strength and colour, which are the same for all its marks."""
    [width] = collection.get_linewidths()
    edged = width > 0
    assert not edged or all(tuple(edge) == (0, 0, 0, 1) for edge in collection.get_edgecolors()), "an edge is black"
    grey = collection.get_array() is None and all(tuple(one[:3]) == to_rgb(GREY) for one in collection.get_facecolors())
    faint = collection.get_alpha() == 0.4
    return {(True, False, False): "front", (False, True, False): "beaten", (False, False, True): "pruned"}[
        (edged, faint, grey)
    ]


def shape_of(collection: PathCollection) -> str:
    [path] = collection.get_paths()
    styles = {CIRCLE: MarkerStyle("o"), TRIANGLE: MarkerStyle("^"), "x": MarkerStyle("X")}
    outlines = {shape: style.get_path().transformed(style.get_transform()) for shape, style in styles.items()}
    [shape] = [shape for shape, outline in outlines.items() if np.array_equal(outline.vertices, path.vertices)]
    return shape


def shares(figure: Figure, marks: Sequence[Mark]) -> np.ndarray:
    """Where marks lie between the ends of the two axes, from 0 to 1; beyond them outside."""
    axes = figure.axes[0]
    pixels = axes.transData.transform([mark.place for mark in marks] or np.empty((0, 2)))
    return axes.transAxes.inverted().transform(pixels)


def marks_of_page(traces: Iterable[Any]) -> Counter[Mark]:
    """What a page's own traces hold; their colours are logarithms."""
    marks = Counter[Mark]()
    for trace in (one for one in traces if "markers" in one.mode):
        marker = trace.marker
        look = "front" if marker.line.color == "black" else "beaten" if marker.opacity == 0.4 else "pruned"
        assert (marker.color == GREY) == (look == "pruned")
        colours = [None] * len(trace.x) if isinstance(marker.color, str) else [round(one, 9) for one in marker.color]
        for x, y, colour in zip(trace.x, trace.y, colours, strict=True):
            marks[Mark((x, y), look, marker.symbol or CIRCLE, colour)] += 1
    return marks


def with_logarithms(marks: Counter[Mark]) -> Counter[Mark]:
    logs = (one if one.colour is None else one._replace(colour=round(math.log10(one.colour), 9)) for one in marks)
    return Counter(dict(zip(logs, marks.values(), strict=True)))
