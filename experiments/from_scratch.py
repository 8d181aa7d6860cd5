"""Transformer-XL's form, RSA-XL and Block-Recurrent from nothing, as in a reproduction of *Encoding Recurrence into
Transformers*, whose bits per character stand beside ours.

    python experiments/from_scratch.py --corpus enwik8:enwik8.gz --steps 20000 --rates 5e-4 1e-3 --processes 2

Every model begins with random weights (--base) and has a state from the first step. A step reads --windows windows, in
chains of --chain. The first seed tries every one of --rates, the others the one that was best on validation bytes. A
run is a line of --out; the same command continues after a stop. At the end it prints a table. Texts are scored in
pieces that are read side by side, each from an empty state (--pieces).
"""

from __future__ import annotations

import argparse
import statistics
from itertools import product
from typing import Any

from comparison_results import METRICS, Result
from rich.console import Console
from rich.table import Table
from runs import Job, Record, add_arguments, folder_name, processes, trained
from scoring import Scoring

from recur_tune.common.parsing import parse
from recur_tune.common.units import format_count, format_size
from recur_tune.config.trial import TrialConfig

_XL = {"recurrence": "cache", "cache_rows": 512, "cache_sinks": 0}
_RSA_XL = _XL | {"beside": "scores", "score_heads": 4}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"recurrence": "none"},
    "XL": _XL,
    "RSA-XL": _RSA_XL,
    "RSA-XL-Small": _RSA_XL | {"base": "none:7x8x4"},
    "Block-Recurrent": _XL | {"beside": "blocks", "state_vectors": 512},
}
# Of the reproduction, after 20,000 steps; RSA-XL after 10,000 and Block-Recurrent after 40,000.
REPORTED = {
    "enwik8": {"XL": 1.26, "RSA-XL": 5.07, "RSA-XL-Small": 3.93, "Block-Recurrent": 1.29},
    "text8": {"XL": 1.28, "RSA-XL": 4.10, "RSA-XL-Small": 3.19, "Block-Recurrent": 1.30},
}
NAMES = ("form", "rate", "seed")
BITS = METRICS["bits_per_byte"]  # a character is a byte


def main() -> None:
    """Train, score, write and print."""
    arguments = parsed_arguments()
    record = Record(arguments.out, NAMES)
    first, *others = arguments.seeds
    with processes(arguments.processes) as mapping:

        def run_all(jobs: list[Job]) -> None:
            record.run(mapping, run, arguments, jobs, lambda result: BITS.of(result, "test"))

        run_all(list(product(arguments.forms, arguments.rates, [first])))
        best = at_best_rates(record.results)
        run_all([(form, best[form][0]["rate"], seed) for form, seed in product(arguments.forms, others)])
    print_table(record.results, arguments.corpus.partition(":")[0])


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, "from_scratch", base="none:14x512x8")
    parser.add_argument("--corpus", default="enwik8", help="as `recur-tune data list` names them")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--windows", type=int, default=24, help="read in a step")
    parser.add_argument("--chain", type=int, default=6, help="windows of a chain; the first has no state")
    Scoring.add_arguments(parser)
    parser.set_defaults(readings=["512/0"], rates=[1e-3], own_rate=None, pieces=50_000)
    return parser.parse_args()


def run(given: tuple[argparse.Namespace, Job]) -> Result:
    """Train one model and score it, in a process that has done others before."""
    arguments, (form, rate, seed) = given
    window, overlap = map(int, arguments.readings[0].split("/"))
    batch = max(arguments.windows // arguments.chain, 1)
    fields = {
        "base": arguments.base, "tokenizer": "bytes", "corpus": arguments.corpus, "window": window, "overlap": overlap,
        "bptt_windows": arguments.chain, "batch": batch, "learning_rate": rate, "decay": "cosine", "seed": seed,
        "recurrence_rate": (arguments.own_rate or rate) / rate, "checkpointing": "none",
        "warmup_steps": min(500, arguments.steps // 20), "validation_tokens": 200_000,
        "tokens": arguments.steps * batch * (arguments.chain * (window - overlap) + overlap),
    }  # fmt: skip
    config = parse(TrialConfig, fields | FORMS[form] | dict(pair.split("=", 1) for pair in arguments.set))
    folder = arguments.runs / folder_name(form, f"{rate:g}", seed)
    return {
        **dict(zip(NAMES, (form, rate, seed), strict=True)), **trained(config, folder),
        "scores": Scoring.of(arguments).scores(folder, config.corpus, config.windowing),
    }  # fmt: skip


def at_best_rates(results: list[Result]) -> dict[str, list[Result]]:
    """Of each form the runs, one a seed, at the rate with the best validation; of rates that most seeds have."""
    by_form: dict[str, dict[float, list[Result]]] = {}
    for one in results:
        by_form.setdefault(one["form"], {}).setdefault(one["rate"], []).append(one)
    return {
        form: min(rates.values(), key=lambda runs: (-len(runs), mean(runs, "validation")))
        for form, rates in by_form.items()
    }


def mean(runs: list[Result], split: str) -> float:
    """Bits per character, over seeds."""
    return statistics.fmean(BITS.of(one, split) for one in runs)


def print_table(results: list[Result], corpus: str) -> None:
    """The reproduction's bits per character and ours."""
    reported = REPORTED.get(corpus, {})
    table = Table(
        f"bits per character, {corpus}", "reported", "test", "validation", "by seed", "rate", "steps", "FLOPs/token",
        "inference memory", "tokens/s", box=None,
    )  # fmt: skip
    for form, runs in at_best_rates(results).items():
        config = TrialConfig(**runs[0]["config"])
        table.add_row(
            form, f"{reported[form]:.2f}" if form in reported else "", f"{mean(runs, 'test'):.3f}",
            f"{mean(runs, 'validation'):.3f}", " ".join(f"{BITS.of(one, 'test'):.3f}" for one in runs),
            f"{runs[0]['rate']:g}", format_count(config.steps), format_count(runs[0]["flops_per_token"]),
            format_size(runs[0]["inference_memory"]),
            format_count(statistics.median(one["tokens_per_second"] for one in runs)),
        )  # fmt: skip
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
