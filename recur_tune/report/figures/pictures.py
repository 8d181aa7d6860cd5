"""Figures as pictures for papers and slides: the pages' data, drawn by matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_bytes
from recur_tune.recurrences.registry import MARKS
from recur_tune.report.figures.labels import finish
from recur_tune.report.figures.style import GREY, GRID, Figure, Panel

if TYPE_CHECKING:  # it takes a while to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MARKERS = {
    "circle": "o", "triangle-up": "^", "square": "s", "diamond": "D", "cross": "P", "star": "*",
    "pentagon": "p", "x": "X", **{mark.symbol: mark.marker for mark in MARKS.values()},
}  # fmt: skip
_TITLE, _ENTRIES = 46, 2  # characters and entries of a legend in a line of half a picture's width
_BELOW = -34  # points below an axis, where its legend begins
DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def picture_paths(page: Path, png: bool, pdf: bool) -> list[Path]:
    """Files of a page's pictures: beside it, with its name."""
    if page.suffix in (".png", ".pdf"):
        raise UserError(f"out: {page} is the page itself; end it in .html, and pictures lie beside it.")
    return [page.with_suffix(ending) for ending, wanted in ((".png", png), (".pdf", pdf)) if wanted]


def write_picture(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Write figures as one PNG or PDF."""
    save_picture(picture_of(panels, title), path)


def save_picture(picture: Canvas, path: Path) -> None:
    """Write a picture as PNG or PDF, all of it or nothing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    image = io.BytesIO()
    FigureCanvasAgg(picture).print_figure(image, format=path.suffix[1:])
    write_bytes(path, image.getvalue())


def empty_picture(title: str) -> tuple[Canvas, Axes]:
    """A picture of one figure, with nothing in it yet."""
    from matplotlib.figure import Figure as Canvas

    # Not through pyplot: its figures are global, and a search that draws again and again would collect them.
    picture = Canvas(figsize=(8, 5), dpi=160, layout="constrained")
    axes = picture.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=14, parse_math=False)
    return picture, axes


def legend_below(picture: Canvas, entries: list[Any], columns: int = 4) -> None:
    """The legend below the axes."""
    picture.legend(
        handles=entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=8, columnspacing=1.5,
        handletextpad=0.6,
    )  # fmt: skip


def picture_of(panels: Sequence[Panel], title: str) -> Canvas:
    """Draw figures of points and lines: the first in a row of its own, then two in a row."""
    from matplotlib.figure import Figure as Canvas

    rows = 1 + len(panels) // 2
    # Not through pyplot, whose figures are global.
    figure = Canvas(figsize=(10, 5.2 + 3.6 * (rows - 1)), dpi=150, layout="constrained")
    grid = figure.add_gridspec(rows, 2, height_ratios=[1.45, *[1] * (rows - 1)])
    drawn = []
    for at, panel in enumerate(panels):
        row, column = (at + 1) // 2, (at + 1) % 2
        last_alone = at == len(panels) - 1 and column == 0
        place = grid[0, :] if at == 0 else grid[row, :] if last_alone else grid[row, column]
        axes = figure.add_subplot(place)
        draw(axes, panel, columns=2 if at == 0 or last_alone else 1)
        drawn += [(axes, panel.figure)] if panel.figure else []
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", parse_math=False)
    finish(figure, drawn)
    return figure


def draw(axes: Axes, panel: Panel, columns: int) -> None:
    """One figure over so many columns of a picture with its title, or the text instead of it."""
    lines = textwrap.fill(panel.title, columns * _TITLE)  # what is wider than its axes would push the others aside
    axes.set_title(lines, loc="left", fontsize=10, fontweight="bold", parse_math=False)
    if panel.figure is None:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.text(0.5, 0.5, panel.caption, ha="center", color="#555555", transform=axes.transAxes, wrap=True)
        return
    plot(axes, panel.figure)
    if panel.figure["layout"].get("showlegend", True):
        _legend_of(axes, columns * _ENTRIES)


def _legend_of(axes: Axes, columns: int) -> None:
    """The legend below the numbers and the title of an axis, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    below = axes.transAxes + ScaledTranslation(0, _BELOW / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below, borderaxespad=0,
        ncols=columns, columnspacing=1.2, borderpad=0,
    )  # fmt: skip


def plot(axes: Axes, figure: Figure) -> None:
    """A figure of points and lines without its legend, and without the names of its marks."""
    look = figure["layout"]
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    for trace in figure["data"]:
        _draw_trace(axes, trace, look.get("coloraxis"))
    for line in look.get("shapes", ()):
        if line.get("yref") == "paper":  # from bottom to top
            axes.axvline(line["x0"], color=GREY, linewidth=0.8, linestyle=":")
        else:
            ends = [line["x0"], line["x1"]], [line["y0"], line["y1"]]
            axes.plot(*ends, color=GREY, linewidth=1, linestyle=":", zorder=1)
    _scale(axes, "x", look["xaxis"])
    _scale(axes, "y", look["yaxis"])
    if "coloraxis" in look:
        _colour_bar(axes, look["coloraxis"])


def _draw_trace(axes: Axes, trace: Figure, colours: Figure | None) -> None:
    name = trace["name"] if trace.get("showlegend", True) and trace.get("name") else None
    placed = trace["x"] != [None]  # else it is only in the legend
    x, y = (trace["x"], trace["y"]) if placed else ([], [])
    if "lines" in trace["mode"]:
        _draw_line(axes, trace, x, y, name)
    if "markers" in trace["mode"]:
        both = "lines" in trace["mode"]  # one entry in the legend, which has both
        _draw_marks(axes, trace, x, y, None if both else name, colours)
    elif "text" in trace["mode"]:
        for at, text in enumerate(trace["text"]):
            axes.annotate(text, (x[at], y[at]), fontsize=7.5, va="center", annotation_clip=False)


def _draw_line(axes: Axes, trace: Figure, x: Sequence[float], y: Sequence[float], name: str | None) -> None:
    look = trace["line"]
    line = {"color": look["color"], "linewidth": look["width"] * 0.8, "linestyle": DASHES[look.get("dash", "solid")]}
    if len(x):
        style = "steps-post" if look.get("shape") == "hv" else "default"
        axes.plot(x, y, drawstyle=style, zorder=2, **line)
    if name and "markers" in trace["mode"]:
        marker = trace["marker"]
        symbol = marker["symbol"]
        line |= {"marker": MARKERS[symbol.removesuffix("-open")], "markersize": marker["size"] * 0.62}
        line |= {"markerfacecolor": "white" if symbol.endswith("-open") else marker["color"]}
        line |= {"markeredgecolor": marker.get("line", {}).get("color", marker["color"])}
    if name:
        axes.plot([], [], label=name, **line)


def _draw_marks(
    axes: Axes, trace: Figure, x: Sequence[float], y: Sequence[float], name: str | None, colours: Figure | None
) -> None:
    marker = trace["marker"]
    edge, symbol = marker.get("line", {}), marker.get("symbol", "circle")
    shape, hollow = MARKERS[symbol.removesuffix("-open")], symbol.endswith("-open")
    own: dict[str, Any] = {"color": marker["color"]} if isinstance(marker["color"], str) else {"c": marker["color"]}
    if colours and "c" in own:
        own |= {"cmap": "viridis", "vmin": colours["cmin"], "vmax": colours["cmax"]}
    rim = {"edgecolors": edge.get("color", "none"), "linewidths": edge.get("width", 0) * 0.7}
    if hollow and "color" in own:
        own, rim = {"facecolors": "none"}, {"edgecolors": own["color"], "linewidths": edge.get("width", 1.1) * 0.7}
    drawn = axes.scatter(
        x, y, s=(marker["size"] * 0.62) ** 2, marker=shape, alpha=marker.get("opacity", 1), label=name,
        zorder=3, **rim, **own,
    )  # fmt: skip
    if hollow and "c" in own:  # its colour is its edge's
        drawn.set(facecolor="none", edgecolor=None, linewidth=edge.get("width", 1.1) * 0.7)
    if any(errors := trace.get("error_y", {}).get("array", [])):
        axes.errorbar(x, y, yerr=errors, fmt="none", ecolor=trace["error_y"]["color"], capsize=3, linewidth=1.2)


def _scale(axes: Axes, which: str, axis: Figure) -> None:
    from matplotlib.ticker import EngFormatter

    log = axis.get("type") == "log"
    axes.set(
        **{f"{which}label": axis["title"]["text"].replace("<br>", "\n"), f"{which}scale": "log" if log else "linear"}
    )
    if ends := axis.get("range"):
        axes.set(**{f"{which}lim": [10**end for end in ends] if log else ends})
    elif axis.get("rangemode") == "tozero":
        axes.set(**{f"{which}lim": (0, None)})
    line = getattr(axes, f"{which}axis")
    if "tickvals" in axis:
        line.set_ticks(axis["tickvals"], axis["ticktext"])
        axes.minorticks_off()
    elif axis.get("tickformat") == "~s":
        line.set_major_formatter(EngFormatter(sep=""))


def _colour_bar(axes: Axes, colours: Figure) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    shown = ScalarMappable(Normalize(colours["cmin"], colours["cmax"]), "viridis")
    bar = axes.figure.colorbar(shown, ax=axes, label=colours["colorbar"]["title"]["text"], pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    if "tickvals" in colours["colorbar"]:
        bar.ax.yaxis.set_ticks(colours["colorbar"]["tickvals"], colours["colorbar"]["ticktext"])
        bar.ax.minorticks_off()
