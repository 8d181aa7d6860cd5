"""A search's front as the files beside it: a picture for papers and a page to explore."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recur_tune.drawing.front import Front, by_kind, points
from recur_tune.drawing.marks import GREY, KINDS, layout, usual_top
from recur_tune.drawing.pictures import DASHES, MARKERS, plot
from recur_tune.files import whole_folder, write_text
from recur_tune.recurrences import canonical
from recur_tune.searching.front import front
from recur_tune.searching.objectives import OBJECTIVES, Objective
from recur_tune.searching.spec import SearchSpec
from recur_tune.searching.state import SearchState, TrialRecord, values_of
from recur_tune.tracking.places import FIGURE, PICTURE, SMALL_PICTURE
from recur_tune.tracking.subject import corpus_of
from recur_tune.trial.fields import own

if TYPE_CHECKING:  # they take a while to import, and most commands draw nothing
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PAGE_HEIGHT = 800  # pixels, for which the legend's place is right; a page fills its window

Place = tuple[float, float]


def draw_front(name: str, spec: SearchSpec, state: SearchState, folder: Path) -> list[Path]:
    """Write a search's front as picture and page into a folder."""
    title, picture, page = f"{name}: {corpus_of(spec)}", folder / PICTURE, folder / FIGURE
    front_picture(state, spec.objectives, picture, title)
    front_page(state, spec.objectives, page, title)
    return [picture, page]


def front_picture(state: SearchState, objectives: Sequence[str], path: Path, title: str) -> None:
    """Write a search's trials and its front as a PNG."""
    write_png(front_figure(state, objectives, title), path)


def write_png(figure: Figure, path: Path) -> None:
    """Write a picture, all of it or nothing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image)
    with whole_folder(path.parent) as partial:
        (partial / path.name).write_bytes(image.getvalue())


def smaller(picture: Path, folder: Path) -> Path:
    """A picture as wide as MLflow's descriptions, which show every picture in its own size."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").resize((640, round(640 * image.height / image.width))).save(folder / SMALL_PICTURE)
    return folder / SMALL_PICTURE


def front_page(state: SearchState, objectives: Sequence[str], path: Path, title: str) -> None:
    """Write the same as a page that needs no network."""
    page = interactive_front(state, objectives, title).to_html(
        include_plotlyjs=True, default_height="95vh", config={"displaylogo": False, "showSendToCloud": False}
    )
    write_text(path, page.replace("<head>", f"<head><title>{html.escape(title)}</title>", 1))


def front_figure(state: SearchState, objectives: Sequence[str], title: str) -> Figure:
    """Draw a search's trials and its front."""
    figure, axes = picture(title)
    drawn, pruned = _read(state, objectives)
    asked = _figure(drawn, pruned)
    if not asked["data"]:
        axes.set(xlabel=drawn.x.title, ylabel=drawn.y.title, xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no trial has values yet", ha="center", color=GREY, transform=axes.transAxes)
        return figure
    plot(axes, asked, names=False)
    if text := _left_out(axes, _places(drawn, drawn.complete), _places(drawn, pruned)):
        axes.annotate(text, (1, 1.01), xycoords="axes fraction", ha="right", va="bottom", fontsize=8, color=GREY)
    outside_legend(figure, _legend(drawn, pruned))
    figure.draw_without_rendering()  # only now does everything have its place, and names can go where there is room
    figure.set_layout_engine("none")
    named = [one for one in asked["data"] if "text" in one]
    lines = {place for one in asked["data"] if one["mode"] == "lines" for place in zip(one["x"], one["y"], strict=True)}
    _write_names(axes, [each for one in named for each in zip(one["text"], one["x"], one["y"], strict=True)], lines)
    return figure


def picture(title: str) -> tuple[Figure, Axes]:
    """An empty picture of a search."""
    from matplotlib.figure import Figure

    # Not through pyplot: its figures are global, and a search that draws again and again would collect them.
    figure = Figure(figsize=(8, 5), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=14, parse_math=False)
    return figure, axes


def outside_legend(figure: Figure, entries: list[Any]) -> None:
    """The legend below the axes."""
    figure.legend(handles=entries, loc="outside lower center", ncols=4, frameon=False, fontsize=8)


def interactive_front(state: SearchState, objectives: Sequence[str], title: str) -> go.Figure:
    """Draw the same with a trial's parameters under the pointer."""
    import plotly.graph_objects as go

    made = _figure(*_read(state, objectives))
    for trace in made["data"]:
        if numbers := trace.get("customdata"):
            hover = [_hover(state.trials[number], objectives) for number in numbers]
            trace.update(hovertext=hover, hoverinfo="text")
    made["layout"]["title"] = {"text": html.escape(title)}
    return go.Figure(made)


def _read(state: SearchState, objectives: Sequence[str]) -> tuple[Front, list[TrialRecord]]:
    """What is drawn at full budget, and the trials that were pruned before."""
    chosen = [OBJECTIVES[name] for name in objectives]
    y = next((objective for objective in chosen if objective.kind == "quality"), chosen[0])
    others = [objective for objective in chosen if objective != y]
    costs = [objective for objective in others if objective.kind == "cost"] or others
    known = [trial for trial in state.trials.values() if np.isfinite(trial.values(objectives) or [math.nan]).all()]
    complete = [trial for trial in known if trial.state == "complete"]
    groups = by_kind(complete, front(known, objectives), _kind)
    drawn = Front(costs[0], y, costs[1] if len(costs) > 1 else None, groups)
    return drawn, [trial for trial in known if trial.state == "pruned"]


def _figure(drawn: Front, pruned: Sequence[TrialRecord]) -> dict[str, Any]:
    """Both as a figure; without any trial it is empty."""
    complete, shown = drawn.complete, list(pruned)
    if complete:  # one trial that went wrong must not press all others into a line
        top = usual_top(values_of(complete, drawn.y))
        shown = [trial for trial in complete if values_of([trial], drawn.y)[0] <= top]
    dots = points(pruned, drawn.x, drawn.y, "pruned", marker={"color": GREY, "size": 4})
    axes = drawn.axes(shown, fixed=True) if shown else {}
    return {
        "data": [trace for trace in (dots, *drawn.traces()) if trace["x"]],
        "layout": layout(_PAGE_HEIGHT, 90, **axes),
    }


def _places(drawn: Front, trials: Sequence[TrialRecord]) -> list[Place]:
    return list(zip(values_of(trials, drawn.x), values_of(trials, drawn.y), strict=True))


def _left_out(axes: Axes, complete: Sequence[Place], pruned: Sequence[Place]) -> str:
    """In words, the trials that lie outside of the axes."""
    more, before = ([place for place in places if not _visible(axes, place)] for places in (complete, pruned))
    words = []
    if more:
        above = all(y > axes.get_ylim()[1] for _, y in more)
        lie, where = "trial lies" if len(more) == 1 else "trials lie", "above" if above else "outside"
        words.append(f"{'↑ ' if above else ''}{len(more)} more {lie} {where}")
    if before:
        words.append(f"{len(before)} pruned {'lies' if len(before) == 1 else 'lie'} outside")
    return ", ".join(words)


def _visible(axes: Axes, place: Place) -> bool:
    """Whether a place lies within the axes."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    return left <= place[0] <= right and bottom <= place[1] <= top


def _legend(drawn: Front, pruned: Sequence[TrialRecord]) -> list[Any]:
    """One entry for each thing in the picture."""
    from matplotlib.lines import Line2D

    entries: list[Any] = []

    def add(label: str, **look: Any) -> None:
        entries.append(Line2D([], [], label=label, **{"linestyle": "", "color": "#777777", **look}))

    for group in drawn.groups:
        look = group.look
        own_colour = {} if drawn.colour else {"color": look.colour}
        add(look.title, marker=MARKERS[look.symbol], markersize=7, **own_colour)
        line = {"color": "#555555"} | own_colour
        add(f"{look.title}: best for a cost", linestyle=DASHES[look.dash], linewidth=1, **line)
    if any(group.best for group in drawn.groups):
        add("on the front", marker="o", markersize=10, color="#dddddd", markeredgecolor="black", markeredgewidth=1.3)
    if any(group.beaten for group in drawn.groups):
        add("complete, but beaten", marker="o", markersize=6, alpha=0.4, markeredgewidth=0)
    if pruned:
        add("pruned", marker="o", markersize=3, color=GREY, markeredgewidth=0)
    return entries


def _write_names(axes: Axes, named: Sequence[tuple[str, float, float]], lines: set[Place]) -> None:
    """Write names beside the front's marks, each where it covers nothing; in a crowd those off the lines go without."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    point = axes.figure.dpi / 72
    visible = [(name, place) for name, *place in named if _visible(axes, (place[0], place[1]))]
    pixels = [axes.transData.transform(place) for _, place in visible]
    taken = [Bbox.from_bounds(x - 5 * point, y - 5 * point, 10 * point, 10 * point) for x, y in pixels]
    outlined = [tuple(place) in lines for _, place in visible]
    for at in sorted(range(len(visible)), key=lambda at: not outlined[at]):
        name, (x, y) = visible[at][0], pixels[at]
        width, height = 5.2 * len(name) * point, 7 * point
        spots = [
            Bbox.from_bounds(x + dx, y + dy, width, height)
            for gap in (6 * point, 11 * point)
            for dx, dy in (
                (gap, gap / 3), (-gap - width, -gap / 3 - height), (gap, -gap / 3 - height), (-gap - width, gap / 3),
                (-width / 2, gap), (-width / 2, -gap - height),
            )
        ]  # fmt: skip
        free = [spot for spot in spots if not any(spot.overlaps(other) for other in taken)]
        if free or outlined[at]:
            spot = (free or spots)[0]
            taken.append(spot)
            text = axes.annotate(name, (spot.x0, spot.y0), xycoords="figure pixels", fontsize=8, zorder=6)
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])


def _hover(trial: TrialRecord, objectives: Sequence[str]) -> str:
    """All about a trial, as the page shows it under the pointer."""
    lines = [f"<b>{trial.name}</b> {trial.state}{f' ({trial.role})' if trial.role else ''}"]
    for objective in (OBJECTIVES[name] for name in objectives):
        lines.append(f"{objective.title}: {_formatted(trial, objective)}")
    params = own(trial.params.get("recurrence"), trial.params)
    lines += [f"{html.escape(name)} = {html.escape(_short(value))}" for name, value in params.items()]
    return "<br>".join(lines)


def _formatted(trial: TrialRecord, objective: Objective) -> str:
    return objective.format(values_of([trial], objective)[0])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _kind(trial: TrialRecord) -> str | None:
    """Its recurrence where the search decides that; None where all trials are of one kind."""
    kind = canonical(trial.params.get("recurrence"))
    return kind if kind in KINDS else None
