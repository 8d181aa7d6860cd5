"""A picture of what states are worth at their memory, from the record of `experiments/states.py`.

    python experiments/states_picture.py states.jsonl --out docs/results/states.png

A row is a form, by its inference memory. It has a hollow mark before training, a full one after next tokens and a
cross after a teacher, each a mean over seeds. What is above --highest is left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from comparison_results import Result
from states import FORMS, LOSSES, best_rates, mean

from recur_tune.common.units import format_size
from recur_tune.recurrences.registry import MARKS

_IN_WORDS = dict(zip(LOSSES, ("before training", "after next tokens", "after a teacher"), strict=True))


def main() -> None:
    """Draw one reading."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="lines of JSON")
    parser.add_argument("--out", type=Path, required=True, help="PNG")
    parser.add_argument("--reading", default="100/0", help="windows and overlap")
    parser.add_argument("--highest", type=float, default=300.0, help="perplexity")
    arguments = parser.parse_args()
    results = [json.loads(line) for line in arguments.record.read_text().splitlines()]
    best = best_rates([one for one in results if one["reading"] == arguments.reading])
    size = {form: runs[0]["inference_memory"] for (form, _), runs in best.items()}
    forms = sorted(size, key=lambda form: (size[form], mean(best[form, LOSSES[1]])), reverse=True)
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.3 * len(forms)), layout="constrained")
    for row, form in enumerate(forms):
        draw(axes, row, {loss: best[form, loss] for loss in LOSSES if (form, loss) in best}, form, arguments.highest)
    axes.set_yticks(range(len(forms)), [f"{form}   {format_size(size[form])}" for form in forms])
    ticks = [tick for tick in (80, 90, 100, 120, 150, 200, 250, 300) if tick <= arguments.highest]
    axes.set(xscale="log", xlabel="perplexity per word of test books")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    for loss, look in _looks("grey").items():
        axes.plot([], [], label=_IN_WORDS[loss], **look)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(arguments.out, dpi=120)


def draw(axes: Any, row: int, runs: dict[str, list[Result]], form: str, highest: float) -> None:
    """A form's marks, and a line from the first to the last."""
    colour = MARKS[FORMS[form]["recurrence"]].colour
    shown = {loss: mean(of_loss) for loss, of_loss in runs.items() if mean(of_loss) <= highest}
    axes.plot(list(shown.values()), [row] * len(shown), color=colour, alpha=0.25, zorder=1)
    for loss, value in shown.items():
        axes.plot(value, row, **_looks(colour)[loss])


def _looks(colour: str) -> dict[str, dict[str, Any]]:
    """Of each loss, how its mark is drawn."""
    full = {"color": colour, "marker": "o", "linestyle": ""}
    return dict(zip(LOSSES, (full | {"markerfacecolor": "none"}, full, full | {"marker": "x"}), strict=True))


if __name__ == "__main__":
    main()
