"""Results of a comparison: tables, a picture, and several files merged into one.

    python experiments/comparison_results.py a.json b.json --merged docs/results/books.json --picture books.png

Differences are paired over documents, with the standard error of their mean. Where a model was trained at several
learning rates, each model is shown at the rate that was best on validation documents over all its seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from recur_tune.common.files import write_text
from recur_tune.common.units import format_count, format_size
from recur_tune.recurrences.registry import NONE, canonical
from recur_tune.report.figures.style import COLOURS, GREY, GRID, STYLES

Result = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """A metric of texts: one number for all of them, and for each document a loss per unit."""

    name: str
    title: str
    unit: str
    counted: str  # by this
    scale: float  # from nats

    def of(self, result: Result, split: str) -> float:
        """With every window given its own document's state."""
        return result["scores"][split]["own"][self.name]

    def differences(self, plain: Result, recurrent: Result, split: str, state: str) -> list[float]:
        """By document: recurrent minus plain."""
        one, other = plain["scores"][split]["own"], recurrent["scores"][split][state]
        return [
            (ours - theirs) / count * self.scale
            for ours, theirs, count in zip(other["document_nll"], one["document_nll"], one[self.counted], strict=True)
            if count
        ]


METRICS = {
    one.name: one
    for one in (
        Metric("perplexity", "perplexity per word", "nats/word", "document_words", 1.0),
        Metric("bits_per_byte", "bits per byte", "bits/byte", "document_bytes", 1 / math.log(2)),
    )
}
SPLITS = ("validation", "test")
STATES = {"own": "its own state", "none": "no state", "other": "another document's state"}
_BLOCK = 10  # positions of a window that are drawn as one point


def main() -> None:
    """Print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="what experiments/paper_comparison.py wrote")
    parser.add_argument("--merged", type=Path, help="write all of them as one file")
    parser.add_argument("--brief", action="store_true", help="leave the loss by position out of that file")
    parser.add_argument("--picture", type=Path, help="draw them, as PNG or PDF")
    parser.add_argument("--metric", choices=METRICS, default="perplexity")
    parser.add_argument("--position", default="300/0", help="window/overlap whose loss by position is drawn")
    arguments = parser.parse_args()
    results = [one for path in arguments.results for one in read_results(path)]
    results.sort(
        key=lambda one: ([*map(int, one["reading"].split("/"))], rate(one), one["seed"], one["recurrence"] != "none")
    )
    metric = METRICS[arguments.metric]
    print_tables(results, metric)
    if arguments.picture:
        draw(at_best_rates(results, metric), metric, arguments.position, arguments.picture)
    if arguments.merged:
        if arguments.brief:
            for scored in (one for run in results for split in SPLITS for one in run["scores"][split].values()):
                del scored["loss_by_position"]
        lines = ",\n".join(json.dumps(rounded(one)) for one in results)
        write_text(arguments.merged, f"[\n{lines}\n]\n")


def print_tables(results: Sequence[Result], metric: Metric) -> None:
    """The runs, and their differences from the plain model."""
    console = Console(width=150)
    table = Table(
        "window/overlap", "seed", "model", "rate", "validation", "test", "FLOPs/token", "peak memory", "training",
        "tokens/s", title=metric.title, box=None,
    )  # fmt: skip
    for one in results:
        table.add_row(
            one["reading"], str(one["seed"]), one["recurrence"], f"{rate(one):g}",
            *(f"{metric.of(one, split):.5g}" for split in SPLITS),
            format_count(one["flops_per_token"]), format_size(one["measured_peak_memory"] or 0),
            f"{one['seconds']:.0f} s", format_count(one["tokens_per_second"]),
        )  # fmt: skip
    console.print(table)
    table = Table(
        "window/overlap", "seed", "rates", "split", "change", metric.unit, "standard error", "better documents",
        "no state", "another's state", title="recurrent against plain, paired over documents", box=None,
    )  # fmt: skip
    for plain, recurrent in pairs(at_best_rates(results, metric)):
        for split in SPLITS:
            rows = {state: metric.differences(plain, recurrent, split, state) for state in STATES}
            own = rows["own"]
            error = statistics.stdev(own) / math.sqrt(len(own)) if len(own) > 1 else math.nan
            table.add_row(
                plain["reading"], str(plain["seed"]), f"{rate(plain):g}, {rate(recurrent):g}", split,
                f"{metric.of(recurrent, split) / metric.of(plain, split) - 1:+.2%}",
                f"{statistics.mean(own):+.4f}", f"{error:.4f}", f"{sum(one < 0 for one in own)} of {len(own)}",
                *(f"{statistics.mean(rows[state]):+.4f}" for state in ("none", "other")),
            )  # fmt: skip
    console.print(table)


def rate(result: Result) -> float:
    """The learning rate of the base's weights."""
    return result["config"]["learning_rate"]


def read_results(path: Path) -> list[Result]:
    """What a comparison wrote, recurrences by their names of today."""
    return [one | {"recurrence": canonical(one["recurrence"])} for one in json.loads(path.read_text())]


def at_best_rates(results: Sequence[Result], metric: Metric) -> list[Result]:
    """Of every reading and model the runs at one rate: the one that did best on validation documents."""
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for one in results:
        by_rate = found.setdefault((one["reading"], one["recurrence"]), {})
        by_rate.setdefault(rate(one), []).append(metric.of(one, "validation"))
    best = {key: min(by_rate, key=lambda each: statistics.mean(by_rate[each])) for key, by_rate in found.items()}
    return [one for one in results if rate(one) == best[one["reading"], one["recurrence"]]]


def pairs(results: Iterable[Result]) -> list[tuple[Result, Result]]:
    """The plain and each recurrent model of the same reading and seed."""
    by_key = {(one["reading"], one["seed"], one["recurrence"]): one for one in results}
    return [
        (by_key[reading, seed, NONE], one)
        for (reading, seed, recurrence), one in by_key.items()
        if recurrence != NONE and (reading, seed, NONE) in by_key
    ]


def draw(results: Sequence[Result], metric: Metric, position: str, path: Path) -> None:
    """Quality against FLOPs, and where in a window the state helps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    by_cost, by_position = figure.subplots(1, 2)
    for axes in (by_cost, by_position):
        axes.grid(True, color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for recurrence, kind in STYLES.items():
        chosen = [one for one in results if one["recurrence"] == recurrence]
        for window in sorted({one["reading"].split("/")[0] for one in chosen}, key=int):
            of_window = [one for one in chosen if one["reading"].split("/")[0] == window]
            points = sorted((one["flops_per_token"], metric.of(one, "test"), one["reading"]) for one in of_window)
            label = f"{kind.title}, windows of {window}"
            by_cost.plot(
                [x for x, _, _ in points], [y for _, y, _ in points], label=label, color=kind.colour, linewidth=1,
                marker="o" if kind.symbol == "circle" else "^", linestyle="--" if kind.dash == "dash" else "-",
                fillstyle="full" if len({one["reading"] for one in of_window}) > 1 else "none",
            )  # fmt: skip
            for x, y, reading in {reading: (x, y, reading) for x, y, reading in points}.values():
                by_cost.annotate(reading, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7)
    by_cost.set(xlabel="FLOPs/token", ylabel=f"{metric.title}, test")
    by_cost.xaxis.set_major_formatter(lambda value, _: format_count(value))
    by_cost.legend(fontsize=7, frameon=False)
    for (state, title), colour, line in zip(STATES.items(), COLOURS[1:], ("-", "--", ":"), strict=False):
        curve = by_block(results, position, state)
        by_position.plot(
            _BLOCK * (np.arange(len(curve)) + 0.5), curve, label=title, color=colour, linestyle=line, linewidth=1.4
        )
    by_position.axhline(0, color=GREY, linewidth=0.8)
    by_position.set(xlabel=f"position in a window, {position}", ylabel="nats/token, recurrent less plain, test")
    by_position.legend(fontsize=7, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def by_block(results: Sequence[Result], reading: str, state: str) -> np.ndarray:
    """The difference in loss by position, over all seeds, some positions together."""
    curves = [
        np.subtract(*(np.array(one["loss_by_position"], dtype=float) for one in both))
        for plain, recurrent in pairs(results)
        if plain["reading"] == reading
        for both in [(recurrent["scores"]["test"][state], plain["scores"]["test"]["own"])]
    ]
    mean = np.mean(curves, axis=0)
    return mean[: len(mean) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).mean(1)


def rounded(value: Any) -> Any:
    """Numbers rounded to six digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
