"""Every mechanism on one base, each form at several learning rates, several runs at a time on one GPU.

    python experiments/mechanisms.py --base runs/mini --corpus text:books --out mechanisms.jsonl --processes 6 \\
        --readings 300/0 100/0 --rates 1e-5 3e-5 1e-4 3e-4 --seeds 0 1 --set tokens=9M bptt_windows=10

The recurrence learns at --own-rate, the base at --rates. The first seed tries every rate; the others train each form at
the rate that was best on validation documents. A run is scored and becomes a line of --out; on test documents it is
scored with no state and with another document's too, as controls. The same command continues after a stop. At the end
it prints a table: each form's best rate, and the difference of its test documents from those of the plain model at its
best rate, paired over documents.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from itertools import product
from typing import Any

from comparison_results import METRICS, STATES, Metric, Result
from rich.console import Console
from rich.table import Table
from runs import Job, Record, add_arguments, folder_name, processes, trained
from scoring import Scoring

from recur_tune.common.parsing import parse
from recur_tune.common.units import format_count, format_size
from recur_tune.config.trial import TrialConfig

FORMS: dict[str, dict[str, Any]] = {
    "none": {"recurrence": "none"},
    "pooled": {
        "recurrence": "pooled", "l_ins": "all", "pooling": "recent", "embeddings": 8, "skip": True,
    },
    "tokens 10": {"recurrence": "tokens", "state_tokens": 10},
    "tokens 10, ring 4": {"recurrence": "tokens", "state_tokens": 10, "ring": 4},
    **{
        f"cache {rows}, {join}": {"recurrence": "cache", "cache_rows": rows, "cache_join": join}
        for join in ("gate", "softmax")
        for rows in (64, 100, 128, 200, 300, 400, 512, 1024)
    },
    "fast weights, delta": {"recurrence": "fast_weights", "write_rule": "delta"},
    "fast weights, gated": {"recurrence": "fast_weights", "write_rule": "gated"},
    "scores 4": {"recurrence": "scores", "score_heads": 4},
    "blocks 64": {"recurrence": "blocks", "state_vectors": 64},
}  # fmt: skip
DEFAULT_FORMS = [
    "none", "pooled", "tokens 10, ring 4", "cache 200, softmax", "cache 300, gate", "fast weights, delta", "scores 4",
    "blocks 64",
]  # fmt: skip
NAMES = ("form", "reading", "rate", "seed")


def main() -> None:
    """Train, score, write and print."""
    arguments = parsed_arguments()
    record, metric = Record(arguments.out, NAMES), METRICS[arguments.metric]
    first, *others = arguments.seeds

    def run_all(jobs: list[Job]) -> None:
        record.run(mapping, run, arguments, jobs, lambda result: metric.of(result, "test"))

    with processes(arguments.processes) as mapping:
        tried = list(product(arguments.forms, arguments.readings, arguments.rates, [first]))
        run_all(sorted(tried, key=lambda job: arguments.rates.index(job[2])))
        run_all(
            [
                (form, reading, best_rates(record.results, reading, metric)[form][0]["rate"], seed)
                for form, reading, seed in product(arguments.forms, arguments.readings, others)
            ]
        )
    print_tables(record.results, metric)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, "mechanisms")
    parser.add_argument("--corpus", required=True, help="as `recur-tune data list` names them")
    parser.add_argument(
        "--forms", nargs="+", choices=FORMS, default=DEFAULT_FORMS, metavar="FORM", help=", ".join(FORMS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--positions", type=int, default=4800, help="read at a time: so many chains that a step is equal"
    )
    parser.add_argument("--metric", choices=METRICS, default="perplexity", help="what is printed")
    Scoring.add_arguments(parser)
    return parser.parse_args()


def run(given: tuple[argparse.Namespace, Job]) -> Result:
    """Train one model and score it, in a process that has done others before."""
    arguments, (form, reading, rate, seed) = given
    window, overlap = map(int, reading.split("/"))
    fields = {
        "base": arguments.base, "corpus": arguments.corpus, "window": window, "overlap": overlap, "seed": seed,
        "batch": max(arguments.positions // window, 1), "learning_rate": rate,
        "recurrence_rate": arguments.own_rate / rate,
    }  # fmt: skip
    config = parse(TrialConfig, fields | dict(pair.split("=", 1) for pair in arguments.set) | FORMS[form])
    folder = arguments.runs / folder_name(form, reading, f"{rate:g}", seed)
    states = ["own"] if config.mechanism is None else list(STATES)
    return {
        **dict(zip(NAMES, (form, reading, rate, seed), strict=True)), **trained(config, folder),
        "scores": Scoring.of(arguments).scores(folder, config.corpus, config.windowing, states, controlled=["test"]),
    }  # fmt: skip


def print_tables(results: list[Result], metric: Metric) -> None:
    """One for each reading."""
    console = Console(width=140)
    for reading in dict.fromkeys(one["reading"] for one in results):
        best = best_rates(results, reading, metric)
        table = Table(
            reading, "rate", f"{metric.title}, test", "against none", f"{metric.unit}, by document", "no state",
            "another's", "FLOPs/token", "inference memory", "tokens/s", box=None,
        )  # fmt: skip
        for form, runs in sorted(best.items(), key=lambda pair: mean(metric, pair[1], "test")):
            table.add_row(form, f"{runs[0]['rate']:g}", f"{mean(metric, runs, 'test'):.4g}",
                          *against(metric, best.get("none"), runs), *told_costs(runs))  # fmt: skip
        console.print(table)


def best_rates(results: list[Result], reading: str, metric: Metric) -> dict[str, list[Result]]:
    """Of each form the runs, one a seed, at the rate that did best on validation documents."""
    by_form: dict[str, dict[float, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for one in results:
        if one["reading"] == reading:
            by_form[one["form"]][one["rate"]].append(one)
    return {
        form: min(rates.values(), key=lambda runs: mean(metric, runs, "validation")) for form, rates in by_form.items()
    }


def mean(metric: Metric, runs: list[Result], split: str, state: str = "own") -> float:
    """Over seeds."""
    return statistics.fmean(one["scores"][split][state][metric.name] for one in runs)


def against(metric: Metric, plain: list[Result] | None, runs: list[Result]) -> list[str]:
    """How far the test documents are from the plain model's: as a share, by document, and with other states."""
    if plain is None or plain is runs:
        return [""] * 4
    share = mean(metric, runs, "test") / mean(metric, plain, "test") - 1
    found = [metric.differences(one, other, "test", "own") for one, other in zip(plain, runs, strict=False)]
    by_document = [statistics.fmean(of_seeds) for of_seeds in zip(*found, strict=True)]
    error = statistics.stdev(by_document) / math.sqrt(len(by_document)) if len(by_document) > 1 else math.nan
    controls = [f"{mean(metric, runs, 'test', state):.4g}" for state in ("none", "other")]
    return [f"{share:+.1%}", f"{statistics.fmean(by_document):+.4f} ± {error:.4f}", *controls]


def told_costs(runs: list[Result]) -> list[str]:
    """Of the first: seeds cost the same."""
    first = runs[0]
    return [
        format_count(first["flops_per_token"]), format_size(first["inference_memory"]),
        format_count(statistics.median(one["tokens_per_second"] for one in runs)),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
