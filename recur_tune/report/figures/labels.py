"""Label placement: names beside the marks of a picture, without overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from recur_tune.report.figures.style import GREY, Figure

if TYPE_CHECKING:  # it takes a while to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_NEAR, _FAR = (6, 8, 11), (16, 22, 30)  # points between a mark's middle and its name; a thin line leads to a far one

Place = tuple[float, float]


def visible(axes: Axes, place: Place) -> bool:
    """Whether a place lies within the axes."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    return left <= place[0] <= right and bottom <= place[1] <= top


def finish(picture: Canvas, drawn: Sequence[tuple[Axes, Figure]]) -> None:
    """Fix the layout of a picture and write the names of its figures where there is room."""
    picture.draw_without_rendering()
    picture.set_layout_engine("none")
    for axes, figure in drawn:
        marked = [trace for trace in figure["data"] if "text" in trace and "markers" in trace["mode"]]
        places = [place for one in marked for place in zip(one["x"], one["y"], strict=True)]
        write_names(axes, list(zip((name for one in marked for name in one["text"]), places, strict=True)))


def write_names(axes: Axes, named: Sequence[tuple[str, Place]]) -> None:
    """Write names beside their marks, once the layout is final.

    No name covers a mark or another name, or leaves the axes. Where there is room, none is nearer to another mark or on
    a line. Names without room are left out; marks on a line choose first.
    """
    from matplotlib.patheffects import withStroke

    # Boxes are rows of left, bottom, right and top, in pixels.
    taken, lines, frame = _boxes_of_marks(axes), _boxes_of_lines(axes), axes.bbox.padded(-2).extents
    on_lines = {(x, y) for line in axes.lines for x, y in np.asarray(line.get_xydata()).tolist()}
    seen = [(name, place) for name, place in named if visible(axes, place)]
    middles = axes.transData.transform(np.reshape([place for _, place in seen], (-1, 2)))
    for name, place in sorted(seen, key=lambda one: one[1] not in on_lines):
        text = axes.annotate(name, (0, 0), xycoords="figure pixels", va="bottom", fontsize=8, zorder=6)
        box, at = text.get_window_extent(), axes.transData.transform(place)
        spots = _spots(at, box.width, box.height, axes.figure.dpi / 72)
        inside = (spots[:, :2] >= frame[:2]).all(axis=1) & (spots[:, 2:] <= frame[2:]).all(axis=1)
        free = np.flatnonzero(inside & ~_covering(spots, taken))
        if not len(free):
            text.remove()
            continue
        far = np.arange(len(spots)) >= len(spots) // 2
        order = np.lexsort((_covering(spots, lines), _astray(spots, at, middles), far))  # by the last of them first
        chosen = next(one for one in order if one in free)
        left, bottom, right, top = spots[chosen].tolist()
        taken = np.vstack([taken, spots[chosen]])
        text.xy = (left, bottom)
        text.set_position(text.xy)
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
        if far[chosen]:
            nearest = (min(max(at[0], left), right), min(max(at[1], bottom), top))
            axes.annotate(
                "", (at[0], at[1]), nearest, xycoords="figure pixels", textcoords="figure pixels",
                arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 5},
            )  # fmt: skip


def _spots(at: np.ndarray, width: float, height: float, point: float) -> np.ndarray:
    """Candidate boxes of a name around its mark, the usual first; the second half is far from it."""
    corners = [
        corner
        for gap in np.multiply((*_NEAR, *_FAR), point).tolist()
        for corner in (
            (gap, gap / 3), (-gap - width, -gap / 3 - height), (gap, -gap / 3 - height), (-gap - width, gap / 3),
            (-width / 2, gap), (-width / 2, -gap - height), (gap, -height / 2), (-gap - width, -height / 2),
        )
    ]  # fmt: skip
    lowest = at + np.array(corners)
    return np.hstack([lowest, lowest + [width, height]])


def _covering(spots: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Which of the spots overlap any box."""
    ends_before, begins_after = spots[:, None, 2:] < boxes[None, :, :2], spots[:, None, :2] > boxes[None, :, 2:]
    apart = np.any(ends_before | begins_after, axis=2)
    return np.any(~apart, axis=1)


def _astray(spots: np.ndarray, at: np.ndarray, middles: np.ndarray) -> np.ndarray:
    """Which of the spots are nearer to the mark of another."""
    centres = (spots[:, :2] + spots[:, 2:]) / 2
    nearest = np.linalg.norm(centres[:, None] - middles[None], axis=2).min(axis=1)
    return nearest < np.linalg.norm(centres - at, axis=1)


def _boxes_of_marks(axes: Axes) -> np.ndarray:
    """What the marks and their error bars cover."""
    from matplotlib.collections import LineCollection, PathCollection

    boxes, point = [np.empty((0, 4))], axes.figure.dpi / 72
    for marks in axes.collections:
        if isinstance(marks, LineCollection):  # error bars, with caps at their ends
            ends = np.reshape([axes.transData.transform(segment) for segment in marks.get_segments()], (-1, 4))
            boxes.append(ends + np.multiply((-4, -1, 4, 1), point))
        elif isinstance(marks, PathCollection):
            across = np.sqrt(np.max(marks.get_sizes())) + np.max(marks.get_linewidth())
            half, places = across / 2 * point, axes.transData.transform(np.ma.getdata(marks.get_offsets()))
            boxes.append(np.hstack([places - half, places + half]))
    return np.vstack(boxes)


def _boxes_of_lines(axes: Axes) -> np.ndarray:
    """The lines as boxes without a width or a height, or as many small ones where they slope."""
    boxes = [
        box
        for line in axes.lines
        for one, other in pairwise(axes.transData.transform(line.get_xydata()).tolist())
        for box in (_steps(one, other) if line.get_drawstyle() == "steps-post" else _pieces(one, other))
    ]
    return np.reshape(boxes, (-1, 4))


def _steps(one: list[float], other: list[float]) -> list[list[float]]:
    (x, y), (next_x, next_y) = one, other
    return [[x, y, next_x, y], [next_x, min(y, next_y), next_x, max(y, next_y)]]


def _pieces(one: list[float], other: list[float]) -> np.ndarray:
    ends = np.linspace(one, other, 2 + int(np.min(np.abs(np.subtract(one, other))) / 4))
    return np.hstack([np.minimum(ends[:-1], ends[1:]), np.maximum(ends[:-1], ends[1:])])
