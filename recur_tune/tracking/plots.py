"""The front as a picture for papers and a page to explore: quality against cost, one mark for each trial.

Shape says which recurrence a trial has, size and a black edge that it is on the front; colour only adds a second
cost, so that those who see it differently lose nothing else.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recur_tune.files import whole_folder, write_text
from recur_tune.recurrences import MARKS, NONE, canonical
from recur_tune.searching.front import front, non_dominated
from recur_tune.searching.objectives import OBJECTIVES, Objective
from recur_tune.searching.spec import SearchSpec
from recur_tune.searching.state import SearchState, TrialRecord
from recur_tune.tracking.places import FIGURE, PICTURE, SMALL_PICTURE
from recur_tune.tracking.subject import corpus_of
from recur_tune.trial.fields import own
from recur_tune.units import format_size

if TYPE_CHECKING:  # they take a while to import, and most commands draw nothing
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOG_FROM = 4  # an axis whose ends are further apart than this factor is logarithmic
GREY = "#8c8c8c"


@dataclass(frozen=True)
class Kind:
    """How the trials of one kind of recurrence are drawn."""

    title: str
    marker: str  # matplotlib's name of the shape
    symbol: str  # plotly's
    dashed: bool
    colour: str  # where no second cost gives one; those that everybody can tell apart


KINDS: dict[str | None, Kind] = {
    **{name: Kind(mark.word, mark.marker, mark.symbol, name == NONE, mark.colour) for name, mark in MARKS.items()},
    None: Kind("trial", "o", "circle", False, "#0072b2"),  # the search does not decide it: all are of one kind
}


@dataclass(frozen=True)
class _Scale:
    """An axis: its ends and the numbers on it."""

    low: float
    high: float
    log: bool
    ticks: list[float]
    labels: list[str]


@dataclass(frozen=True)
class _Scene:
    """What there is to draw."""

    x: Objective
    y: Objective
    colour: Objective | None
    best: list[TrialRecord]
    beaten: list[TrialRecord]
    pruned: list[TrialRecord]
    top: float  # what lies above would flatten the rest

    @property
    def complete(self) -> list[TrialRecord]:
        """The trials at full budget."""
        return self.best + self.beaten

    @property
    def shown(self) -> list[TrialRecord]:
        """The trials that the axes have to make room for."""
        return [trial for trial in self.complete if _value(trial, self.y) <= self.top] or self.pruned

    @property
    def kinds(self) -> list[str | None]:
        """The kinds of recurrence among the trials at full budget."""
        return [kind for kind in KINDS if any(kind_of(trial) == kind for trial in self.complete)]

    def envelope(self, kind: str | None) -> list[TrialRecord]:
        """The trials of a kind that no other of that kind beats in the two axes, from cheap to good."""
        own = [trial for trial in self.complete if kind_of(trial) == kind]
        places = np.column_stack([_values(own, self.x), _values(own, self.y)])
        chosen = [trial for trial, best in zip(own, non_dominated(places), strict=True) if best]
        return sorted(chosen, key=lambda trial: (_value(trial, self.x), _value(trial, self.y)))


def draw_front(name: str, spec: SearchSpec, state: SearchState, folder: Path) -> list[Path]:
    """Write a search's front as picture and page into a folder."""
    title, picture, page = f"{name}: {corpus_of(spec)}", folder / PICTURE, folder / FIGURE
    front_picture(state, spec.objectives, picture, title)
    front_page(state, spec.objectives, page, title)
    return [picture, page]


def front_picture(state: SearchState, objectives: Sequence[str], path: Path, title: str) -> None:
    """Write a search's trials and its front as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    image = io.BytesIO()
    FigureCanvasAgg(front_figure(state, objectives, title)).print_png(image)
    with whole_folder(path.parent) as partial:
        (partial / path.name).write_bytes(image.getvalue())


def front_figure(state: SearchState, objectives: Sequence[str], title: str) -> Figure:
    """Draw a search's trials and its front."""
    from matplotlib.figure import Figure

    # Not through pyplot: its figures are global, and a search that draws again and again would collect them.
    figure = Figure(figsize=(8, 5), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    scene = _scene(state, objectives)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=14, parse_math=False)
    axes.set_xlabel(scene.x.title)
    axes.set_ylabel(scene.y.title)
    axes.grid(True, color="#e8e8e8", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    if scene.shown:
        _draw(figure, axes, scene)
        figure.legend(handles=_legend(scene), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        figure.draw_without_rendering()  # only now does everything have its place, and names can go where there is room
        figure.set_layout_engine("none")
        _write_names(axes, scene)
    else:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no trial has values yet", ha="center", color=GREY, transform=axes.transAxes)
    return figure


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


def interactive_front(state: SearchState, objectives: Sequence[str], title: str) -> go.Figure:
    """Draw the same with a trial's parameters under the pointer."""
    import plotly.graph_objects as go

    scene = _scene(state, objectives)
    figure = go.Figure()

    def add(trials: list[TrialRecord], name: str, **look: Any) -> None:
        if trials:
            hover = {"hovertext": [_hover(trial, objectives) for trial in trials], "hoverinfo": "text"}
            x, y = (_values(trials, objective).tolist() for objective in (scene.x, scene.y))
            figure.add_scatter(x=x, y=y, name=name, **hover | look)

    add(scene.pruned, "pruned", mode="markers", marker={"color": GREY, "size": 4})
    for kind in scene.kinds:
        look = KINDS[kind]
        line = {"shape": "hv", "dash": "dash" if look.dashed else "solid", "color": "#444444", "width": 1}
        add(scene.envelope(kind), f"{look.title}: best for a cost", mode="lines", line=line, hoverinfo="skip")
    for trials, name in ((scene.beaten, "beaten"), (scene.best, "on the front")):
        for kind, look in KINDS.items():
            members = [trial for trial in trials if kind_of(trial) == kind]
            marker: dict[str, Any] = {"symbol": look.symbol, "size": 9, "opacity": 0.4, "color": look.colour}
            extra: dict[str, Any] = {"mode": "markers"}
            if scene.colour:  # plotly has no logarithmic colours
                marker |= {"color": np.log10(_values(members, scene.colour)).tolist(), "coloraxis": "coloraxis"}
            if trials is scene.best:
                marker |= {"size": 15, "opacity": 1, "line": {"width": 1.8, "color": "black"}}
                extra = {"mode": "markers+text", "text": [t.name for t in members], "textposition": "top right"}
            add(members, f"{look.title}, {name}", marker=marker, **extra)
    figure.update_layout(
        title=html.escape(title), template="plotly_white", hoverlabel={"align": "left"}, xaxis_title=scene.x.title,
        yaxis_title=scene.y.title, legend={"orientation": "h", "yanchor": "top", "y": -0.12},
    )  # fmt: skip
    for axis, objective, log in (("xaxis", scene.x, None), ("yaxis", scene.y, False)):
        if scene.shown:
            scale = axis_scale(objective, _values(scene.shown, objective), log)
            ends = [math.log10(scale.low), math.log10(scale.high)] if scale.log else [scale.low, scale.high]
            ticks = {"tickvals": scale.ticks, "ticktext": scale.labels}
            figure.update_layout({axis: {"type": "log" if scale.log else "linear", "range": ends, **ticks}})
    if scene.colour and scene.complete:
        scale = axis_scale(scene.colour, _values(scene.complete, scene.colour), log=True)
        bar = {"title": scene.colour.title, "ticktext": scale.labels, "tickvals": np.log10(scale.ticks).tolist()}
        span = {"cmin": math.log10(scale.low), "cmax": math.log10(scale.high)}
        figure.update_layout(coloraxis={"colorscale": "Viridis", "colorbar": bar, **span})
    return figure


def _scene(state: SearchState, objectives: Sequence[str]) -> _Scene:
    chosen = [OBJECTIVES[name] for name in objectives]
    y = next((objective for objective in chosen if objective.kind == "quality"), chosen[0])
    others = [objective for objective in chosen if objective != y]
    costs = [objective for objective in others if objective.kind == "cost"] or others
    known = [trial for trial in state.trials.values() if np.isfinite(trial.values(objectives) or [math.nan]).all()]
    best = front(known, objectives)
    on_front = {trial.number for trial in best}
    beaten = [trial for trial in known if trial.state == "complete" and trial.number not in on_front]
    pruned = [trial for trial in known if trial.state == "pruned"]
    top = math.inf
    if best:
        # One trial that went wrong must not press all others into a line; up to twice the best, all is worth seeing.
        qualities = _values(best + beaten, y)
        lowest, usual = qualities.min(), np.quantile(qualities, 0.75, method="lower")
        top = float(max(usual + 3 * (usual - lowest), 2 * lowest))
    return _Scene(costs[0], y, costs[1] if len(costs) > 1 else None, best, beaten, pruned, top)


def _draw(figure: Figure, axes: Axes, scene: _Scene) -> None:
    """Everything but the names, the least important at the bottom."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    x, y = (
        axis_scale(scene.x, _values(scene.shown, scene.x)),
        axis_scale(scene.y, _values(scene.shown, scene.y), log=False),
    )
    axes.set(xscale="log" if x.log else "linear", xlim=(x.low, x.high), ylim=(y.low, y.high))
    axes.xaxis.set_ticks(x.ticks, x.labels)
    axes.yaxis.set_ticks(y.ticks, y.labels)
    axes.minorticks_off()
    axes.scatter(_values(scene.pruned, scene.x), _values(scene.pruned, scene.y), s=6, color=GREY, linewidths=0)
    colours: dict[str, Any] = {}
    if scene.colour and scene.complete:
        scale = axis_scale(scene.colour, _values(scene.complete, scene.colour))
        norm = LogNorm(scale.low, scale.high) if scale.log else Normalize(scale.low, scale.high)
        bar = figure.colorbar(ScalarMappable(norm, "viridis"), ax=axes, label=scene.colour.title, pad=0.02, aspect=30)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_ticks(scale.ticks, scale.labels)
        bar.ax.minorticks_off()
        colours = {"cmap": "viridis", "norm": norm}
    for kind in scene.kinds:
        look, line = KINDS[kind], scene.envelope(kind)
        axes.plot(
            _values(line, scene.x), _values(line, scene.y), drawstyle="steps-post", color="#444444", linewidth=1,
            linestyle="--" if look.dashed else "-", zorder=2,
        )  # fmt: skip
        for trials, size, alpha, edge in ((scene.beaten, 38, 0.4, 0.0), (scene.best, 105, 1.0, 1.3)):
            members = [trial for trial in trials if kind_of(trial) == kind]
            own = {"c": _values(members, scene.colour), **colours} if scene.colour else {"color": look.colour}
            axes.scatter(
                _values(members, scene.x), _values(members, scene.y), s=size, marker=look.marker, alpha=alpha,
                edgecolors="black", linewidths=edge, zorder=3 + alpha, **own,
            )  # fmt: skip
    if text := _left_out(axes, scene):
        axes.annotate(text, (1, 1.01), xycoords="axes fraction", ha="right", va="bottom", fontsize=8, color=GREY)


def _left_out(axes: Axes, scene: _Scene) -> str:
    """In words, the trials that lie outside of the axes."""
    more, pruned = (
        [trial for trial in trials if not _visible(axes, scene, trial)] for trials in (scene.complete, scene.pruned)
    )
    words = []
    if more:
        above = all(_value(trial, scene.y) > axes.get_ylim()[1] for trial in more)
        lie, where = "trial lies" if len(more) == 1 else "trials lie", "above" if above else "outside"
        words.append(f"{'↑ ' if above else ''}{len(more)} more {lie} {where}")
    if pruned:
        words.append(f"{len(pruned)} pruned {'lies' if len(pruned) == 1 else 'lie'} outside")
    return ", ".join(words)


def _visible(axes: Axes, scene: _Scene, trial: TrialRecord) -> bool:
    """Whether a trial lies within the axes."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    return left <= _value(trial, scene.x) <= right and bottom <= _value(trial, scene.y) <= top


def _legend(scene: _Scene) -> list[Any]:
    """One entry for each thing in the picture."""
    from matplotlib.lines import Line2D

    entries: list[Any] = []

    def add(label: str, **look: Any) -> None:
        entries.append(Line2D([], [], label=label, **{"linestyle": "", "color": "#777777", **look}))

    for look in (KINDS[kind] for kind in scene.kinds):
        add(look.title, marker=look.marker, markersize=7, **({} if scene.colour else {"color": look.colour}))
        add(f"{look.title}: best for a cost", linestyle="--" if look.dashed else "-", linewidth=1, color="#444444")
    if scene.best:
        add("on the front", marker="o", markersize=10, color="#dddddd", markeredgecolor="black", markeredgewidth=1.3)
    if scene.beaten:
        add("complete, but beaten", marker="o", markersize=6, alpha=0.4, markeredgewidth=0)
    if scene.pruned:
        add("pruned", marker="o", markersize=3, color=GREY, markeredgewidth=0)
    return entries


def _write_names(axes: Axes, scene: _Scene) -> None:
    """Write names beside the front's marks, each where it covers nothing; in a crowd those off the lines go without."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    point = axes.figure.dpi / 72
    outlined = {trial.number for kind in scene.kinds for trial in scene.envelope(kind)}
    visible = [trial for trial in scene.best if _visible(axes, scene, trial)]
    places = {t.number: axes.transData.transform((_value(t, scene.x), _value(t, scene.y))) for t in visible}
    taken = [Bbox.from_bounds(x - 5 * point, y - 5 * point, 10 * point, 10 * point) for x, y in places.values()]
    for trial in sorted(visible, key=lambda trial: trial.number not in outlined):
        x, y = places[trial.number]
        width, height = 5.2 * len(trial.name) * point, 7 * point
        spots = [
            Bbox.from_bounds(x + dx, y + dy, width, height)
            for gap in (6 * point, 11 * point)
            for dx, dy in (
                (gap, gap / 3), (-gap - width, -gap / 3 - height), (gap, -gap / 3 - height), (-gap - width, gap / 3),
                (-width / 2, gap), (-width / 2, -gap - height),
            )
        ]  # fmt: skip
        free = [spot for spot in spots if not any(spot.overlaps(other) for other in taken)]
        if free or trial.number in outlined:
            spot = (free or spots)[0]
            taken.append(spot)
            text = axes.annotate(trial.name, (spot.x0, spot.y0), xycoords="figure pixels", fontsize=8, zorder=6)
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])


def axis_scale(objective: Objective, values: np.ndarray, log: bool | None = None) -> _Scale:
    """An axis for these values with some room around them; logarithmic, unless told, where they lie far apart."""
    low, high = float(values.min()), float(values.max())
    if log is None:
        log = low > 0 and high / low > _LOG_FROM
    if log:
        room = max((high / low) ** 0.06, 1.02)
        low, high = low / room, high * room
    else:
        # Values that hardly differ need more room, or all ticks would get the same label.
        room = 0.06 * (high - low) if high - low > 0.01 * abs(high) else 0.05 * abs(high) or 1.0
        low, high = low - room, high + room
    ticks = [tick for tick in _ticks(objective, low, high, log) if low <= tick <= high]
    return _Scale(low, high, log, ticks, [objective.format(tick) for tick in ticks])


def _ticks(objective: Objective, low: float, high: float, log: bool) -> Iterable[float]:
    """Round numbers in the objective's own units."""
    binary = objective.format is format_size
    if log and high / low > _LOG_FROM:
        if binary:
            powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
            return (2.0**power for power in powers[:: len(powers) // 8 + 1])
        tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 1.5, 2, 3, 5, 7) if high / low < 15 else (1, 2, 5) if len(tens) <= 4 else (1,)
        return (digit * 10.0**power for power in tens for digit in digits)
    unit = 1024 ** math.floor(math.log(high, 1024)) if binary else 1
    span = (high - low) / unit
    power = 10.0 ** math.floor(math.log10(span))
    step = unit * next(digit * power for digit in (0.1, 0.2, 0.5, 1, 2) if span / (digit * power) <= 7)
    return (index * step for index in range(math.floor(low / step), math.ceil(high / step) + 1))


def _hover(trial: TrialRecord, objectives: Sequence[str]) -> str:
    """All about a trial, as the page shows it under the pointer."""
    lines = [f"<b>{trial.name}</b> {trial.state}{f' ({trial.role})' if trial.role else ''}"]
    for objective in (OBJECTIVES[name] for name in objectives):
        lines.append(f"{objective.title}: {objective.format(_value(trial, objective))}")
    params = own(trial.params.get("recurrence"), trial.params)
    lines += [f"{html.escape(name)} = {html.escape(_short(value))}" for name, value in params.items()]
    return "<br>".join(lines)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def kind_of(trial: TrialRecord) -> str | None:
    """Its recurrence where the search decides that; None where all trials are of one kind."""
    kind = canonical(trial.params.get("recurrence"))
    return kind if kind in KINDS else None


def _value(trial: TrialRecord, objective: Objective) -> float:
    value = trial.value(objective.name)
    return math.nan if value is None else value


def _values(trials: Iterable[TrialRecord], objective: Objective) -> np.ndarray:
    return np.array([_value(trial, objective) for trial in trials], dtype=float)
