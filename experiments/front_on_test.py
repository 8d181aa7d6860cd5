"""Every model on a search's front, scored on documents that the search has not seen.

    python experiments/front_on_test.py results/books --opening 50k --out books-front.json

A search chooses by a sample of the validation split, so the numbers on its front have a selection bias. Those of the
test split have none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from comparison_results import METRICS, SPLITS, rounded
from rich.console import Console
from rich.table import Table
from scoring import Scoring

from recur_tune.api.result import SearchResult
from recur_tune.common.files import write_text
from recur_tune.search.record.directory import MODEL, SearchDirectory
from recur_tune.search.record.front import front_rows
from recur_tune.search.record.objectives import OBJECTIVES


def main() -> None:
    """Score, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("search", type=Path, help="its folder, models included")
    parser.add_argument("--out", type=Path, help="where the numbers go")
    parser.add_argument("--trials", type=Path, help="where a table of all trials goes, however they ended")
    parser.add_argument("--metric", choices=METRICS, default="perplexity", help="what is printed")
    Scoring.add_arguments(parser)
    arguments = parser.parse_args()
    directory, scoring, metric = SearchDirectory(arguments.search), Scoring.of(arguments), METRICS[arguments.metric]
    space, objectives = directory.spec.parsed_space, directory.spec.objectives
    costs = [OBJECTIVES[name] for name in objectives[1:]]
    titles = [cost.title for cost in costs]
    table = Table(
        "trial", "recurrence", "window/overlap", *titles, "in the search", *SPLITS, title=metric.title, box=None
    )
    rows = front_rows(directory.state(), objectives)
    for row in rows:
        config = space.trial_config(row["params"])
        model = directory.trial(row["number"]) / MODEL
        row["scores"] = scoring.scores(model, config.corpus, config.windowing)
        table.add_row(
            row["trial"], config.recurrence, f"{config.window}/{config.overlap}",
            *(cost.format(row[cost.name]) for cost in costs), f"{row[objectives[0]]:.5g}",
            *(f"{metric.of(row, split):.5g}" for split in SPLITS),
        )  # fmt: skip
    if arguments.out:
        write_text(arguments.out, "[\n" + ",\n".join(json.dumps(rounded(one)) for one in rows) + "\n]\n")
    if arguments.trials:
        write_text(arguments.trials, SearchResult(directory).trials.to_csv(index=False, float_format="%.6g"))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
