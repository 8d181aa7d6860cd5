"""Question answering with and without a state: k-fold cross-validation on one file of HotpotQA's questions.

    python experiments/answers.py --base roberta-base --questions hotpot_dev.json --out answers.jsonl --processes 8 \\
        --folds 5 --readings 300/0 --rates 3e-5 1e-4 3e-4 --set question_tokens=40 bptt_windows=14 tokens=2M

Every question is in the test part of one fold; one in eight of the others is for validation. For every fold, form and
rate a model is trained and scored, on test questions also with no state and with another question's, as controls. What
a recurrence adds learns at --own-rate. Every run is scored and becomes a line of --out, with all its answers. The same
command continues after a stop. At the end it prints the tables of experiments/answer_tables.py.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from answer_tables import print_tables
from comparison_results import STATES, Result
from question_folds import folds_of
from runs import Job, Record, add_arguments, folder_name, processes, trained
from scoring import Scoring

from recur_tune.common.files import write_text
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.data.corpora.questions import read_json

FORMS: dict[str, dict[str, Any]] = {
    "none": {"recurrence": "none"},
    "pooled": {"recurrence": "pooled", "l_ins": "all", "width": 400, "depth": 1, "skip": True},
    "tokens": {"recurrence": "tokens", "state_tokens": 10},
}
NAMES = ("form", "reading", "rate", "folds", "fold")


def main() -> None:
    """Split, train, score, write and print."""
    arguments = parsed_arguments()
    rows = read_json(arguments.questions)
    for fold, parts in enumerate(folds_of(rows, arguments.folds)):
        for split, part in parts.items():
            file = corpus(arguments, fold) / f"{split}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(part))
    record = Record(arguments.out, NAMES)
    # Fold by fold, so that what has ended when time is up can be compared.
    jobs = [
        (form, reading, rate, arguments.folds, fold)
        for reading, fold, rate, form in product(
            arguments.readings, range(arguments.folds), arguments.rates, arguments.forms
        )
    ]
    with processes(arguments.processes) as mapping:
        record.run(mapping, run, arguments, jobs, lambda result: result["scores"]["test"]["own"]["f1"])
    print_tables(record.results, rows)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, "answers")
    parser.add_argument("--questions", type=Path, required=True, help="an official file, or the same in JSON lines")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--batch", type=int, default=64, help="questions scored side by side")
    arguments = parser.parse_args()
    if arguments.folds < 2:
        parser.error(f"--folds: {arguments.folds} leaves nothing to train on; give 2 or more.")
    return arguments


def corpus(arguments: argparse.Namespace, fold: int) -> Path:
    """Where a fold's questions lie."""
    return arguments.runs / "folds" / f"{fold}-of-{arguments.folds}"


def run(given: tuple[argparse.Namespace, Job]) -> Result:
    """Train one model and score it, in a process that has done others before."""
    arguments, job = given
    form, reading, rate, _, fold = job
    window, overlap = map(int, reading.split("/"))
    fields = {
        "base": arguments.base, "corpus": f"hotpotqa:{corpus(arguments, fold)}", "window": window,
        "overlap": overlap, "learning_rate": rate, "recurrence_rate": arguments.own_rate / rate,
    }  # fmt: skip
    config = parse(TrialConfig, fields | dict(pair.split("=", 1) for pair in arguments.set) | FORMS[form])
    folder = arguments.runs / folder_name(form, reading, f"{rate:g}", arguments.folds, fold)
    states = ["own"] if config.mechanism is None else list(STATES)
    scoring = Scoring(opening=None, pieces=None, batch=arguments.batch)
    return {
        **dict(zip(NAMES, job, strict=True)), **trained(config, folder),
        "scores": scoring.scores(folder, config.corpus, config.windowing, states, controlled=["test"]),
    }  # fmt: skip


if __name__ == "__main__":
    main()
