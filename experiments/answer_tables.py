"""Results of a cross-validation of question answering: tables, and files for HotpotQA's own evaluation script.

    python experiments/answer_tables.py answers.jsonl --questions hotpot_dev.json --predictions predictions

In each fold a form is shown at the rate that was best on that fold's validation questions, so that no test question
affects the choice. Scores are over all questions of the file, and over those that can be answered: by yes or no, or by
words that stand in a paragraph. A question without a text is not asked, and counts as wrong. Errors are standard errors
over questions, differences paired over them. A fold in which runs are missing is left out, with its questions.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from comparison_results import Result
from question_folds import answerable_of, folds_of, name_of
from rich.console import Console
from rich.table import Table

from recur_tune.common.files import write_text
from recur_tune.common.units import format_count
from recur_tune.data.corpora.questions import read_json
from recur_tune.recurrences.registry import NONE

METRICS = ("f1", "exact_match")


def main() -> None:
    """Print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what experiments/answers.py wrote")
    parser.add_argument("--questions", type=Path, required=True, help="the file that it was given")
    parser.add_argument("--predictions", type=Path, metavar="FOLDER", help="write each form's answers there")
    arguments = parser.parse_args()
    results = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    rows = read_json(arguments.questions)
    print_tables(results, rows)
    if arguments.predictions:
        write_predictions(results, rows, arguments.predictions)


class Group:
    """The runs of one reading in those folds that are complete: that have every form and rate which any fold has.

    Attributes:
        title: The reading, and in how many folds the questions were split.
        missing: Folds that are not complete.
        questions: Names of the test questions of those that are.
        forms: That were trained.
        rates: At which they were.
    """

    def __init__(self, reading: str, folds: int, results: Iterable[Result], rows: Sequence[Any]) -> None:
        here = [one for one in results if (one["reading"], one["folds"]) == (reading, folds)]
        done = [{(one["form"], one["rate"]) for one in here if one["fold"] == fold} for fold in range(folds)]
        complete = [fold for fold in range(folds) if done[fold] == set().union(*done)]
        self._runs = [one for one in here if one["fold"] in complete]
        self.title, self.missing = f"{reading}, {folds} folds", folds - len(complete)
        parts = folds_of(rows, folds)
        self.questions = [name_of(row) for fold in complete for row in parts[fold]["test"]]
        self.forms = list(dict.fromkeys(one["form"] for one in self._runs))
        self.rates = sorted({one["rate"] for one in self._runs})

    def best(self, form: str) -> list[Result]:
        """Its runs, one a fold, at the rate that the fold's validation questions like best."""
        by_fold: dict[int, list[Result]] = {}
        for one in self._runs:
            if one["form"] == form:
                by_fold.setdefault(one["fold"], []).append(one)
        return [max(runs, key=lambda one: one["scores"]["validation"]["own"]["f1"]) for runs in by_fold.values()]

    def at_rate(self, form: str, rate: float) -> list[Result]:
        """Its runs, one a fold."""
        return [one for one in self._runs if (one["form"], one["rate"]) == (form, rate)]


def groups(results: Sequence[Result], rows: Sequence[Any]) -> list[Group]:
    """By reading and number of folds, in the order of the results."""
    keys = dict.fromkeys((one["reading"], one["folds"]) for one in results)
    return [Group(reading, folds, results, rows) for reading, folds in keys]


def print_tables(results: Sequence[Result], rows: Sequence[Any]) -> None:
    """How many questions can be answered, and for each reading every form at its best rates and at every rate."""
    answerable, console = answerable_of(rows), Console(width=170)
    console.print(f"{len(rows)} questions, of which {len(answerable)} can be answered from what there is to read")
    for group in groups(results, rows):
        if group.missing:
            console.print(f"{group.title}: {group.missing} of them not complete, and left out")
        if group.questions:
            console.print(best_table(group, answerable))
            console.print(rates_table(group))


def best_table(group: Group, answerable: set[str]) -> Table:
    """Every form at its best rates, and how far it is from the plain model."""
    possible = [one for one in group.questions if one in answerable]
    table = Table(
        group.title, "rates", "F1", "EM", "F1, answerable", "EM, answerable", "F1 against none", "EM against none",
        "F1, no state", "F1, another's", "FLOPs/token", "tokens/s", box=None,
        title=f"{len(group.questions)} test questions, {len(possible)} answerable, in percent",
    )  # fmt: skip
    for form in group.forms:
        runs = group.best(form)
        rates = Counter(f"{one['rate']:g}" for one in runs)
        table.add_row(
            form, ", ".join(f"{rate} × {count}" for rate, count in rates.items()),
            *(
                told(scores_of(runs, questions, metric))
                for questions in (group.questions, possible) for metric in METRICS
            ),
            *against(group, runs), format_count(runs[0]["flops_per_token"]),
            format_count(statistics.median(one["tokens_per_second"] for one in runs)),
        )  # fmt: skip
    return table


def against(group: Group, runs: Sequence[Result]) -> list[str]:
    """Differences from the plain model on test questions, and F1 with other states."""
    if runs[0]["recurrence"] == NONE:
        return [""] * 4
    plain = group.best(NONE)
    differences = [told(differences_of(plain, runs, group.questions, metric), "+") for metric in METRICS]
    controls = [told(scores_of(runs, group.questions, "f1", state)) for state in ("none", "other")]
    return (differences if plain else ["", ""]) + controls


def rates_table(group: Group) -> Table:
    """F1 of every form at every rate, over validation and test questions."""
    table = Table(
        group.title, *(f"{rate:g}" for rate in group.rates), box=None, title="F1 at every rate, validation / test"
    )
    for form in group.forms:
        runs_by_rate = [group.at_rate(form, rate) for rate in group.rates]
        table.add_row(form, *(" / ".join(_means(runs, group.questions)) for runs in runs_by_rate))
    return table


def _means(runs: Sequence[Result], questions: Sequence[str]) -> list[str]:
    asked = [one["f1"] for run in runs for one in run["scores"]["validation"]["own"]["answers"]]
    return [f"{100 * statistics.fmean(asked):.2f}", f"{statistics.fmean(scores_of(runs, questions, 'f1')):.2f}"]


def scores_of(runs: Iterable[Result], questions: Iterable[str], metric: str, state: str = "own") -> list[float]:
    """Of every question, in percent; 0 for one that was not asked."""
    found = {one["id"]: one[metric] for run in runs for one in run["scores"]["test"][state]["answers"]}
    return [100 * found.get(question, 0.0) for question in questions]


def differences_of(
    plain: Iterable[Result], runs: Iterable[Result], questions: Sequence[str], metric: str
) -> list[float]:
    """To the plain model, question by question."""
    pairs = zip(scores_of(runs, questions, metric), scores_of(plain, questions, metric), strict=True)
    return [ours - theirs for ours, theirs in pairs]


def told(values: Sequence[float], sign: str = "") -> str:
    """A mean with its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):{sign}.2f} ± {error:.2f}"


def write_predictions(results: Sequence[Result], rows: Sequence[Any], folder: Path) -> None:
    """A file for each reading and form, as hotpot_evaluate_v1.py takes it, and one with the questions that go with it.

    No supporting facts are predicted, which that script remarks on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for group in groups(results, rows):
        name, asked = group.title.replace(", ", "-").replace("/", "-").replace(" ", "-"), set(group.questions)
        write_text(folder / f"{name}-questions.json", json.dumps([row for row in rows if name_of(row) in asked]))
        for form in group.forms:
            given = [one for run in group.best(form) for one in run["scores"]["test"]["own"]["answers"]]
            answers = dict.fromkeys(group.questions, "") | {one["id"]: one["answer"] for one in given}
            write_text(folder / f"{name}-{form}.json", json.dumps({"answer": answers, "sp": {}}))


if __name__ == "__main__":
    main()
