"""What a key-value cache gives without any training, beside plain windows: a row for each form, as it is scored.

    python experiments/untrained_states.py --base runs/mini --corpus text:books --out untrained_states.csv

Forms, for every window: plain; plain with half of the window read again; for every number of rows a plain window that
is longer by as many, without and with these read again; and the cache with these rows, by every `cache_keep`. All score
the same tokens of the test split: the opening of every document, cut into pieces that are read side by side.

With --train-tokens every `cache_keep` and the plain model are then trained for so long, at each of --rates and with
each of --seeds, one after the other, at the first of --windows and --train-rows. Choose a rate by the validation
column.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch
from runs import trained

from recur_tune.common.parsing import parse
from recur_tune.common.precision import Precision
from recur_tune.common.units import format_count, format_size, parse_count
from recur_tune.config.base_shape import base_settings
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.estimate import quick_costs
from recur_tune.data.tokens import TokenisedSplit, prepare
from recur_tune.models import WindowedDecoder
from recur_tune.models.pretrained import load_decoder
from recur_tune.ops.device import default_device
from recur_tune.recurrences.cache.spec import CacheSpec
from recur_tune.recurrences.registry import settings_of
from recur_tune.tasks.language_modelling.evaluation import evaluate
from recur_tune.training.calibration import calibrate_first
from recur_tune.training.setup import untrained

KEEP = get_args(CacheSpec.model_fields["cache_keep"].annotation)
COLUMNS = (
    "window", "overlap", "form", "rows", "trained", "rate", "seed", "validation", "perplexity", "inference_memory",
    "flops_per_token", "seconds", "tokens_per_second",
)  # fmt: skip
Row = dict[str, Any]


class Table:
    """Rows as markdown on the screen and as CSV in a file, each as it comes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with file.open("w", newline="") as out:
            csv.writer(out).writerow(COLUMNS)
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)

    def add(self, row: Row) -> None:
        """One row; what it does not name stays empty."""
        with self._file.open("a", newline="") as out:
            csv.DictWriter(out, COLUMNS).writerow(row)
        told = row | {
            "perplexity": f"{row['perplexity']:.2f}", "inference_memory": format_size(row["inference_memory"]),
            "flops_per_token": format_count(row["flops_per_token"]), "seconds": f"{row['seconds']:.2f}",
            "tokens_per_second": format_count(row["tokens_per_second"]),
        }  # fmt: skip
        print(f"| {' | '.join(str(told.get(column, '')) for column in COLUMNS)} |", flush=True)


def main() -> None:
    """Load the base once, and score every form."""
    arguments, started = parsed_arguments(), time.monotonic()
    plain = parse(TrialConfig, fields_of(arguments, arguments.windows[0]))
    cells = list(forms(arguments))
    settings = base_settings(arguments.base, plain.tokenizer)
    model, tokenizer = untrained(plain)
    assert isinstance(model, WindowedDecoder), "check_base has refused encoders for a corpus of texts"
    for _, config in cells:
        config.check_base(model.config.shape)
    split = prepare(plain.corpus, "test", tokenizer)
    documents = len(split.document_starts) - 1
    split = split.openings(max(arguments.tokens // documents, 2)).pieces(arguments.pieces)
    score(model, plain, split.head(2 * arguments.positions), arguments)  # libraries are initialised with the first
    table, left = Table(arguments.out), 0
    for name, config in cells:
        if time.monotonic() - started > 60 * arguments.minutes:
            left += 1
            continue
        model.config.recurrence = settings_of(config.recurrence_spec)
        model.add_recurrence()
        model.to(model.device)
        calibrate_first(model, lambda: prepare(plain.corpus, "train", tokenizer))
        costs = quick_costs(config, model.config.shape, settings)
        table.add(described(name, config, costs) | score(model, config, split, arguments))
    if left:
        print(f"{left} forms were left out after {arguments.minutes} minutes (--minutes)", flush=True)
    if arguments.train_tokens:
        del model
        train_all(arguments, split, table)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="as `recur-tune train --base` takes it")
    parser.add_argument("--corpus", required=True, help="as `recur-tune data list` names them")
    parser.add_argument("--out", type=Path, default=Path("untrained_states.csv"), help="CSV")
    parser.add_argument("--windows", nargs="+", type=int, default=[100, 300])
    parser.add_argument("--rows", nargs="+", type=int, default=[32, 64, 128, 256, 512])
    parser.add_argument("--keep", nargs="+", choices=KEEP, default=list(KEEP))
    parser.add_argument("--tokens", type=parse_count, default=400_000, help="of the test split that every form scores")
    parser.add_argument(
        "--pieces", type=parse_count, default=4000, metavar="TOKENS", help="of a document, read at once"
    )
    parser.add_argument("--positions", type=int, default=16_384, help="tokens read at a time, over all pieces")
    parser.add_argument("--precision", choices=get_args(Precision), default="auto")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no untrained form begins later")
    parser.add_argument("--train-tokens", type=parse_count, help="then train each form for so many")
    parser.add_argument("--train-rows", type=int, default=128)
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-4, 3e-4])
    parser.add_argument("--own-rate", type=float, default=1e-3, help="learning rate of what a recurrence adds")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="of all trials")
    return parser.parse_args()


def fields_of(arguments: argparse.Namespace, window: int, **fields: Any) -> dict[str, Any]:
    """A trial's fields; the plain model's unless others are given."""
    given = dict(pair.split("=", 1) for pair in arguments.set)
    subject = {"base": arguments.base, "corpus": arguments.corpus, "precision": arguments.precision}
    return {**subject, "recurrence": "none", "window": window, **given, **fields}


def forms(arguments: argparse.Namespace) -> Iterator[tuple[str, TrialConfig]]:
    """What is compared without training."""
    for window in arguments.windows:
        yield "plain", parse(TrialConfig, fields_of(arguments, window))
        yield "plain, overlap", parse(TrialConfig, fields_of(arguments, window, overlap=(window + 1) // 2))
        for rows in arguments.rows:
            for name, overlap in (("plain, longer", 0), ("plain, longer, overlap", rows)):
                yield name, parse(TrialConfig, fields_of(arguments, window + rows, overlap=overlap))
            for keep in arguments.keep:
                cache = {"recurrence": "cache", "cache_rows": rows, "cache_keep": keep}
                yield f"cache, {keep}", parse(TrialConfig, fields_of(arguments, window, **cache))


def described(name: str, config: TrialConfig, costs: dict[str, float]) -> Row:
    """A row's columns but for what is measured."""
    rows = {} if config.mechanism is None else {"rows": config.recurrence_spec.model_dump()["cache_rows"]}
    told = {column: costs[column] for column in ("inference_memory", "flops_per_token")}
    return {"window": config.window, "overlap": config.overlap, "form": name, "trained": 0, **rows, **told}


def score(model: WindowedDecoder, config: TrialConfig, split: TokenisedSplit, arguments: argparse.Namespace) -> Row:
    """Perplexity per word, and how long it took."""
    batch = max(1, arguments.positions // config.window)
    found = evaluate(model, split, config.windowing, batch, arguments.precision)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return {
        "perplexity": found.metrics()["perplexity"], "seconds": found.seconds,
        "tokens_per_second": found.tokens / found.seconds,
    }  # fmt: skip


def train_all(arguments: argparse.Namespace, split: TokenisedSplit, table: Table) -> None:
    """Every form at every rate, with one seed after the other."""
    window, folder = arguments.windows[0], arguments.out.with_suffix(".run")
    kinds: dict[str, dict[str, Any]] = {"plain": {}}
    for keep in arguments.keep:
        cache = {"recurrence": "cache", "cache_rows": arguments.train_rows, "cache_keep": keep}
        kinds[f"cache, {keep}"] = cache
    for seed, rate, (name, kind) in product(arguments.seeds, arguments.rates, kinds.items()):
        fields = {"tokens": arguments.train_tokens, "learning_rate": rate, "seed": seed, **kind}
        fields |= {"recurrence_rate": arguments.own_rate / rate} if kind else {}
        batch = {} if any(pair.startswith("batch=") for pair in arguments.set) else {"batch": max(4800 // window, 1)}
        config = parse(TrialConfig, fields_of(arguments, window, **fields, **batch))
        shutil.rmtree(folder, ignore_errors=True)
        result = trained(config, folder)
        model, _ = load_decoder(folder)
        row = described(name, config, result) | {"trained": result["tokens"], "rate": rate, "seed": seed}
        row["validation"] = f"{result['validation']['perplexity']:.2f}"
        table.add(row | score(model.to(default_device()), config, split, arguments))
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
