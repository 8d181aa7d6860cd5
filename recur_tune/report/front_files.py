"""Files of a search's front: a table, a picture for papers and an interactive page."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recur_tune.common.files import write_text
from recur_tune.common.parsing import finite
from recur_tune.common.units import format_count
from recur_tune.config.fields import own_values
from recur_tune.recurrences.registry import canonical
from recur_tune.report.confirmed_front import draw_confirmation
from recur_tune.report.figures.front import Front, by_kind
from recur_tune.report.figures.labels import Place, finish, visible
from recur_tune.report.figures.pictures import empty_picture, legend_below, plot, save_picture
from recur_tune.report.figures.placing import PLACE_NAMES
from recur_tune.report.figures.style import GREY, STYLES, hover_lines
from recur_tune.search.record.confirmation import confirmation
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import front, front_rows, has_values
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState, TrialRecord
from recur_tune.search.record.subject import corpus_of
from recur_tune.search.record.tracking_place import FIGURE, PICTURE, SMALL_PICTURE

if TYPE_CHECKING:  # they take a while to import, and most commands draw nothing
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PLACED = """
const front = document.getElementById("{plot_id}");
front.on("plotly_afterplot", () => place_names(front));
place_names(front);
"""
_PAGE_HEIGHT = 800  # pixels, for which the legend is placed; a page fills its window


def write_front(directory: SearchDirectory, spec: SearchSpec, state: SearchState) -> list[Path]:
    """Write the front as a table, a picture and a page, and the confirmed front where there is one."""
    table = directory.path / "front.json"
    write_text(table, json.dumps(front_rows(state, spec.objectives), indent=2) + "\n")
    files = [table, *draw_front(directory.name, spec, state, directory.path)]
    if found := confirmation(state, spec):
        table = directory.path / "confirmed.json"
        write_text(table, json.dumps(finite(found.rows()), indent=2) + "\n")
        title = f"{directory.name}: {corpus_of(spec)}, confirmed"
        files += [table, draw_confirmation(title, spec, found, directory.path / "confirmed.png")]
    return files


def draw_front(name: str, spec: SearchSpec, state: SearchState, folder: Path) -> list[Path]:
    """Write a search's front as picture and page into a folder."""
    title, picture, page = f"{name}: {corpus_of(spec)}", folder / PICTURE, folder / FIGURE
    front_picture(state, spec.objectives, picture, title)
    front_page(state, spec.objectives, page, title)
    return [picture, page]


def front_picture(state: SearchState, objectives: Sequence[str], path: Path, title: str) -> None:
    """Write a search's trials and its front as a PNG."""
    save_picture(front_figure(state, objectives, title), path)


def smaller(picture: Path, folder: Path) -> Path:
    """A picture as wide as MLflow's descriptions, which show pictures in full size."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").resize((640, round(640 * image.height / image.width))).save(folder / SMALL_PICTURE)
    return folder / SMALL_PICTURE


def front_page(state: SearchState, objectives: Sequence[str], path: Path, title: str) -> None:
    """Write the same as a page that works offline."""
    page = interactive_front(state, objectives, title).to_html(
        include_plotlyjs=True, default_height="95vh", config={"displaylogo": False, "showSendToCloud": False},
        post_script=f"{PLACE_NAMES}{_PLACED}",
    )  # fmt: skip
    write_text(path, page.replace("<head>", f"<head><title>{html.escape(title)}</title>", 1))


def front_figure(state: SearchState, objectives: Sequence[str], title: str) -> Figure:
    """Draw a search's trials and its front."""
    figure, axes = empty_picture(title)
    drawn = _read(state, objectives)
    asked = drawn.figure(_PAGE_HEIGHT, top=90, fixed=True)
    if not asked["data"]:
        axes.set(xlabel=drawn.x.title, ylabel=drawn.y.title, xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no trial has values yet", ha="center", color=GREY, transform=axes.transAxes)
        return figure
    plot(axes, asked)
    if text := _left_out(axes, drawn.positions(drawn.complete), drawn.positions(drawn.stopped)):
        axes.annotate(text, (1, 1.01), xycoords="axes fraction", ha="right", va="bottom", fontsize=8, color=GREY)
    entries = axes.get_legend_handles_labels()[0]
    _legend_in_columns(figure, entries[: len(drawn.groups)], entries[len(drawn.groups) :])
    finish(figure, [(axes, asked)])
    return figure


def _legend_in_columns(figure: Figure, kinds: list[Any], others: list[Any]) -> None:
    """The legend in few rows, the recurrences first."""
    from matplotlib.lines import Line2D

    rows = 2 if len(kinds) <= 8 else 3
    blanks = [Line2D([], [], linestyle="", label=" ") for _ in range(-len(kinds) % rows)]
    columns = math.ceil((len(kinds) + len(blanks) + len(others)) / rows)
    legend_below(figure, [*kinds, *blanks, *others], columns)


def interactive_front(state: SearchState, objectives: Sequence[str], title: str) -> go.Figure:
    """The same figure with a trial's parameters on hover."""
    import plotly.graph_objects as go

    made = _read(state, objectives).figure(_PAGE_HEIGHT, top=90, fixed=True)
    for trace in made["data"]:
        if numbers := trace.get("customdata"):
            hover = [_hover(state.trials[number], objectives) for number in numbers]
            trace.update(hovertext=hover, hoverinfo="text")
    made["layout"]["title"] = {"text": html.escape(title)}
    return go.Figure(made)


def _read(state: SearchState, objectives: Sequence[str]) -> Front:
    """The trials to draw: those at full budget, and those that were pruned or paused before it."""
    chosen = [OBJECTIVES[name] for name in objectives]
    y = next((objective for objective in chosen if objective.kind == "quality"), chosen[0])
    others = [objective for objective in chosen if objective != y]
    costs = [objective for objective in others if objective.kind == "cost"] or others
    known = [trial for trial in state.trials.values() if has_values(trial, objectives)]
    complete = [trial for trial in known if trial.state == "complete"]
    stopped = [trial for trial in known if trial.state in ("pruned", "paused")]
    groups = by_kind(complete, front(known, objectives), stopped, _kind)
    return Front(costs[0], y, costs[1] if len(costs) > 1 else None, groups)


def _left_out(axes: Axes, complete: Sequence[Place], stopped: Sequence[Place]) -> str:
    """How many trials lie outside the axes, in words."""
    more, before = ([place for place in places if not visible(axes, place)] for places in (complete, stopped))
    words = []
    if more:
        above = all(y > axes.get_ylim()[1] for _, y in more)
        lie, where = "trial lies" if len(more) == 1 else "trials lie", "above" if above else "outside"
        words.append(f"{'↑ ' if above else ''}{len(more)} more {lie} {where}")
    if before:
        words.append(f"{len(before)} stopped early {'lies' if len(before) == 1 else 'lie'} outside")
    return ", ".join(words)


def _hover(trial: TrialRecord, objectives: Sequence[str]) -> str:
    """A trial's hover text."""
    stopped = trial.state != "complete" and trial.validations
    stood = f", here after {format_count(trial.validations[-1].tokens)} tokens" if stopped else ""
    params = own_values(trial.params.get("recurrence"), trial.params)
    return "<br>".join(hover_lines(trial, stood, objectives, params))


def _kind(trial: TrialRecord) -> str | None:
    """Its recurrence where the search chooses it; None where the space fixes it."""
    kind = canonical(trial.params.get("recurrence"))
    return kind if kind in STYLES else None
