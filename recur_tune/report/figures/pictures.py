"""Figures as pictures for papers and slides: the pages' data, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_bytes
from recur_tune.recurrences.registry import MARKS
from recur_tune.report.figures.style import GREY, GRID, Figure, Panel

if TYPE_CHECKING:  # it takes a while to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MARKERS = {
    "circle": "o", "triangle-up": "^", "square": "s", "diamond": "D", "cross": "P", "star": "*",
    "pentagon": "p", "x": "X", **{mark.symbol: mark.marker for mark in MARKS.values()},
}  # fmt: skip
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
    for at, panel in enumerate(panels):
        row, column = (at + 1) // 2, (at + 1) % 2
        last_alone = at == len(panels) - 1 and column == 0
        place = grid[0, :] if at == 0 else grid[row, :] if last_alone else grid[row, column]
        draw(figure.add_subplot(place), panel)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", parse_math=False)
    return figure


def draw(axes: Axes, panel: Panel) -> None:
    """One figure with its title, or the text instead of it."""
    axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", parse_math=False)
    if panel.figure is None:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.text(0.5, 0.5, panel.caption, ha="center", color="#555555", transform=axes.transAxes, wrap=True)
        return
    plot(axes, panel.figure)
    if panel.figure["layout"].get("showlegend", True):
        axes.legend(fontsize=7, frameon=False, loc="best")


def plot(axes: Axes, figure: Figure, names: bool = True) -> None:
    """A figure of points and lines without its legend; without `names`, the caller places them."""
    look = figure["layout"]
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    for trace in figure["data"]:
        _draw_trace(axes, trace, look.get("coloraxis"), names)
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


def _draw_trace(axes: Axes, trace: Figure, colours: Figure | None, names: bool) -> None:
    name = trace["name"] if trace.get("showlegend", True) and trace.get("name") else None
    placed = trace["x"] != [None]  # else it is only in the legend
    x, y = (trace["x"], trace["y"]) if placed else ([], [])
    if "lines" in trace["mode"] and (placed or trace["mode"] == "lines"):
        line = trace["line"]
        style = "steps-post" if line.get("shape") == "hv" else "default"
        only = name if "markers" not in trace["mode"] else None
        axes.plot(
            x, y, drawstyle=style, color=line["color"], linewidth=line["width"] * 0.8, label=only, zorder=2,
            linestyle=DASHES[line.get("dash", "solid")],
        )  # fmt: skip
    if "markers" in trace["mode"]:
        _draw_marks(axes, trace, name, colours)
    for at, text in enumerate(trace.get("text", ())):
        if text and names:
            axes.annotate(text, (x[at], y[at]), xytext=(5, 3), textcoords="offset points", fontsize=7.5, zorder=6)


def _draw_marks(axes: Axes, trace: Figure, name: str | None, colours: Figure | None) -> None:
    marker = trace["marker"]
    if isinstance(marker.get("symbol"), list):  # one for each mark, where matplotlib has one for all
        for symbol in dict.fromkeys(marker["symbol"]):
            own_places = [at for at, one in enumerate(marker["symbol"]) if one == symbol]
            part: Figure = {one: [trace[one][at] for at in own_places] for one in ("x", "y")}
            if errors := trace.get("error_y"):
                part["error_y"] = {**errors, "array": [errors["array"][at] for at in own_places]}
            _draw_marks(axes, {**trace, **part, "marker": {**marker, "symbol": symbol}}, name, colours)
            name = None  # once in the legend
        return
    edge = marker.get("line", {})
    symbol = marker.get("symbol", "circle")
    shape, hollow = MARKERS[symbol.removesuffix("-open")], symbol.endswith("-open")
    if "error_y" in trace:
        _draw_errors(axes, trace, name, shape, hollow)
        return
    own: dict[str, Any] = {"color": marker["color"]} if isinstance(marker["color"], str) else {"c": marker["color"]}
    if colours and "c" in own:
        own |= {"cmap": "viridis", "vmin": colours["cmin"], "vmax": colours["cmax"]}
    x, y = ([] if trace[one] == [None] else trace[one] for one in ("x", "y"))
    if "c" in own and not x:
        own = {"color": GREY}
    rim = {"edgecolors": edge.get("color", "none"), "linewidths": edge.get("width", 0) * 0.7}
    if hollow and "color" in own:
        own, rim = {"facecolors": "none"}, {"edgecolors": own["color"], "linewidths": 0.8}
    axes.scatter(
        x, y, s=(marker["size"] * 0.62) ** 2, marker=shape, alpha=marker.get("opacity", 1), label=name,
        zorder=3, **rim, **own,
    )  # fmt: skip


def _draw_errors(axes: Axes, trace: Figure, name: str | None, shape: str, hollow: bool) -> None:
    """Marks with a bar to either side."""
    colour, size, errors = trace["marker"]["color"], trace["marker"]["size"] * 0.62, trace["error_y"]["array"]
    axes.errorbar(
        trace["x"], trace["y"], yerr=errors if any(errors) else None, fmt=shape, markersize=size,
        color=colour, markeredgecolor=colour, markerfacecolor="white" if hollow else colour, capsize=3, linewidth=1.2,
        label=name, zorder=3,
    )  # fmt: skip


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
