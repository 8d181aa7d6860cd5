"""Forecasts as a picture: errors by step ahead and by column, and the last forecast beside what came."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.report.figures.pictures import save_picture
from recur_tune.report.figures.style import COLOURS, GREY, INK

_MSE, _MAE = COLOURS[0], COLOURS[1]
_ENDINGS = (".png", ".pdf", ".svg")
_LEAD = 2  # horizons of the window that are shown before a forecast


def draw_forecasts(report: Mapping[str, Any], path: Path) -> None:
    """Draw what `eval` reports of forecasts into a file."""
    from matplotlib.figure import Figure as Canvas

    if path.suffix not in _ENDINGS:
        raise UserError(f"picture: {path} ends in {path.suffix or 'nothing'}; end it in {', '.join(_ENDINGS)}.")
    picture = Canvas(figsize=(10, 7), dpi=160, layout="constrained")
    picture.suptitle(
        f"{report['run']} on {report['corpus']} {report['split']}: MSE {report['mse']:.4g}, MAE {report['mae']:.4g}",
        fontsize=11, fontweight="bold", x=0.01, ha="left", parse_math=False,
    )  # fmt: skip
    places: dict[str, Any] = picture.subplot_mosaic([["steps", "columns"], ["example", "example"]])
    _errors_by_step(places["steps"], report["by_step"])
    _errors_by_column(places["columns"], report["by_column"])
    _example(places["example"], report["example"])
    for axes in places.values():
        axes.spines[["top", "right"]].set_visible(False)
    save_picture(picture, path)


def _errors_by_step(axes: Any, by_step: list[dict[str, float | None]]) -> None:
    steps = range(1, len(by_step) + 1)
    for name, colour, dash in (("mse", _MSE, "-"), ("mae", _MAE, "--")):
        axes.plot(steps, [_number(one[name]) for one in by_step], dash, color=colour, label=name.upper())
    axes.set(title="errors by time step ahead", xlabel="time steps ahead", ylabel="in z-scores", ylim=(0, None))
    axes.legend(frameon=False)


def _errors_by_column(axes: Any, by_column: Mapping[str, dict[str, float | None]]) -> None:
    for shift, name, colour, hatch in ((-0.2, "mse", _MSE, ""), (0.2, "mae", _MAE, "//")):
        heights = [_number(one[name]) for one in by_column.values()]
        places = [at + shift for at in range(len(heights))]
        axes.bar(places, heights, 0.4, color=colour, hatch=hatch, edgecolor="white", label=name.upper())
    axes.set_xticks(range(len(by_column)), list(by_column), rotation=30, ha="right", parse_math=False)
    axes.set(title="errors by column")
    axes.legend(frameon=False)


def _example(axes: Any, example: Mapping[str, Mapping[str, list[float | None]]]) -> None:
    """The last forecast of the last column, which in these data sets is the target."""
    name = list(example)[-1]
    column = example[name]
    window, truth, made = ([*map(_number, column[part])] for part in ("window", "truth", "forecast"))
    shown = window[-_LEAD * len(made) :]
    axes.plot(range(1 - len(shown), 1), shown, color=GREY, label="read")
    axes.plot(range(1, len(truth) + 1), truth, color=INK, label="came")
    axes.plot(range(1, len(made) + 1), made, "--", color=_MSE, label="forecast")
    axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_title(f"the last forecast of {name}", parse_math=False)
    axes.set(xlabel="time steps ahead", ylabel="in z-scores")
    axes.legend(frameon=False, ncols=3)


def _number(error: float | None) -> float:
    return float("nan") if error is None else error
