"""States that are worth more than their rows: a cache with an overflow, compressed states alone, and a cache, trained.

    python experiments/compressed_states.py --base smollm2.gguf --corpus text:books --to compressed --part composed

A part is some forms (--part, or --forms); each is trained at every one of --rates with every one of --seeds and scored
on the test split: the openings of its documents, cut into pieces that are read side by side. A run is a line of
runs.jsonl in the folder --to. The same command continues after a stop, and --minutes stops it: no run begins later. At
its end, or with --table alone, it prints every form of the folder at the rate with the best validation, and how far
each is from the cache of 128 rows and from the plain model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from runs import Result, trained
from untrained_states import score

from recur_tune.common.parsing import parse
from recur_tune.common.precision import Precision
from recur_tune.common.units import format_count, format_size, parse_count
from recur_tune.config.trial import TrialConfig
from recur_tune.data.tokens import TokenisedSplit, prepare
from recur_tune.models import WindowedDecoder
from recur_tune.models.pretrained import load_decoder
from recur_tune.ops.device import default_device

PLAIN, YARDSTICK = "plain", "cache 128"


def cache(rows: int, keep: str = "recent", every: int = 0) -> dict[str, Any]:
    """A cache; its overflow, if it has one, is in every so many layers."""
    overflow = {"overflow": "gated_delta", "delta_every": every} if every else {}
    return {"recurrence": "cache", "cache_rows": rows, "cache_keep": keep, **overflow}


# On SmolLM2 a matrix in every layer holds as much as 32 rows.
PARTS: dict[str, dict[str, dict[str, Any]]] = {
    "exact": {
        PLAIN: {"recurrence": "none"},
        YARDSTICK: cache(128),
        "cache 128, keydiff": cache(128, "keydiff"),
        "cache 128, tova": cache(128, "tova"),
        "cache 128, h2o": cache(128, "h2o"),
    },
    "composed": {  # with the bytes of 128 rows
        "cache 96 + delta": cache(96, every=1),
        "cache 96, keydiff + delta": cache(96, "keydiff", every=1),
        "cache 112, keydiff + delta/2": cache(112, "keydiff", every=2),
    },
    "alone": {  # with the bytes of 32 rows at most, and those rows
        "delta": {"recurrence": "gated_delta"},
        "cache 16 + delta/2": cache(16, every=2),
        "cache 32": cache(32),
    },
    "few": {
        "cache 4 + delta/2": cache(4, every=2),
        "cache 16, keydiff + delta/2": cache(16, "keydiff", every=2),
        "cache 32, keydiff": cache(32, "keydiff"),
    },
    "ttt": {"ttt": {"recurrence": "ttt"}, "ttt/15": {"recurrence": "ttt", "ttt_every": 15}},
}
FORMS = {name: fields for part in PARTS.values() for name, fields in part.items()}
NAMES = ("form", "reading", "rate", "own_rate", "seed")
GIVEN = ("base", "corpus", "train_tokens", "set")  # that all runs of a folder share


def main() -> None:
    """Train, score, write and print."""
    arguments, started = parsed_arguments(), time.monotonic()
    arguments.to.mkdir(parents=True, exist_ok=True)
    file = arguments.to / "runs.jsonl"
    forms = arguments.forms or [name for part in arguments.part for name in PARTS[part]]
    jobs = () if arguments.table else product(arguments.seeds, arguments.rates, arguments.own_rates, forms)
    known, split, left = [run for one in (file, *arguments.known) for run in results(one)], None, 0
    given = {name: str(getattr(arguments, name)) for name in GIVEN}
    if not arguments.table and any(one.get("given", given) != given for one in results(file)):
        raise SystemExit(f"--to: {file} has runs of other settings ({', '.join(GIVEN)}); name another folder.")
    for seed, rate, own_rate, form in jobs:
        job = dict(zip(NAMES, (form, arguments.reading, rate, own_rate, seed), strict=True))
        if any(all(one[name] == job[name] for name in NAMES) for one in known):
            continue
        if time.monotonic() - started > 60 * arguments.minutes:
            left += 1
            continue
        began = time.monotonic()
        result, split = run(job, arguments, split)
        known.append(job | result | {"given": given, "wall_seconds": time.monotonic() - began})
        with file.open("a") as out:
            out.write(json.dumps(known[-1]) + "\n")
        print(
            f"{form}, rate {rate:g}, own {own_rate:g}, seed {seed}: validation {result['validated']:.2f}, test "
            f"{result['perplexity']:.2f}, {known[-1]['wall_seconds']:.0f} s",
            flush=True,
        )
    if left:
        print(f"{left} runs are left; the same command continues", flush=True)
    print_tables(known)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="as `recur-tune train --base` takes it")
    parser.add_argument("--corpus", default="text:books", help="as `recur-tune data list` names them")
    parser.add_argument("--to", type=Path, default=Path("compressed"), help="folder of the results")
    parser.add_argument("--known", nargs="*", type=Path, default=[], help="runs.jsonl of earlier calls elsewhere")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--reading", default="100/0", help="window and overlap")
    parser.add_argument("--train-tokens", type=parse_count, default=3_000_000)
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-4, 3e-4, 6e-4], help="of the base")
    parser.add_argument("--own-rates", nargs="+", type=float, default=[3e-3], help="of what a recurrence adds")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--minutes", type=float, default=8.0, help="no run begins later")
    parser.add_argument("--tokens", type=parse_count, default=400_000, help="of the test split that every form scores")
    parser.add_argument("--pieces", type=parse_count, default=4000, metavar="TOKENS", help="of a document")
    parser.add_argument("--positions", type=int, default=16_384, help="tokens read at a time, over all pieces")
    parser.add_argument("--precision", choices=get_args(Precision), default="auto")
    parser.add_argument("--table", action="store_true", help="train nothing, print what the folder has")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="of all trials")
    arguments = parser.parse_args()
    if not (arguments.table or arguments.base):
        parser.error("--base: name what every run starts from")
    return arguments


def results(file: Path) -> list[Result]:
    """Those of earlier calls."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run(
    job: dict[str, Any], arguments: argparse.Namespace, split: TokenisedSplit | None
) -> tuple[Result, TokenisedSplit]:
    """Train one model and score it."""
    window, overlap = map(int, job["reading"].split("/"))
    usual = {
        "base": arguments.base, "corpus": arguments.corpus, "precision": arguments.precision, "window": window,
        "overlap": overlap, "batch": max(4800 // window, 1), "bptt_windows": 10, "decay": "cosine",
        "checkpointing": "none", "tokens": arguments.train_tokens, "learning_rate": job["rate"], "seed": job["seed"],
        "recurrence_rate": job["own_rate"] / job["rate"],
    }  # fmt: skip
    given = dict(pair.split("=", 1) for pair in arguments.set)
    config = parse(TrialConfig, usual | given | FORMS[job["form"]])
    folder = arguments.to / "run"
    result = trained(config, folder)
    model, tokenizer = load_decoder(folder)
    assert isinstance(model, WindowedDecoder), "a corpus of texts refuses encoders"
    if split is None:
        whole = prepare(config.corpus, "test", tokenizer)
        documents = len(whole.document_starts) - 1
        split = whole.openings(max(arguments.tokens // documents, 2)).pieces(arguments.pieces)
    found = score(model.to(default_device()), config, split, arguments)
    shutil.rmtree(folder)
    told = {name: result[name] for name in ("config", "inference_memory", "flops_per_token", "tokens")}
    validated = {"validated": result["validation"]["perplexity"], "trained_per_second": result["tokens_per_second"]}
    return told | validated | found, split


def print_tables(known: list[Result]) -> None:
    """One for each reading."""
    for reading in dict.fromkeys(one["reading"] for one in known):
        best = best_rates([one for one in known if one["reading"] == reading])
        plain, yardstick = (mean(best[name]) if name in best else None for name in (PLAIN, YARDSTICK))
        table = Table(
            reading, "rate", "own", "test, by seed", "mean", f"against {YARDSTICK}", "share of its gain",
            "inference memory", "state", "FLOPs/token", "tokens/s", box=None,
        )  # fmt: skip
        for form, runs in sorted(best.items(), key=lambda pair: mean(pair[1])):
            found, first = mean(runs), runs[0]
            state = first["inference_memory"] - best[PLAIN][0]["inference_memory"] if PLAIN in best else 0
            table.add_row(
                form, f"{first['rate']:g}", f"{first['own_rate']:g}",
                " ".join(f"{one['perplexity']:.2f}" for one in runs), f"{found:.2f}",
                "" if yardstick is None else f"{found / yardstick - 1:+.1%}",
                "" if plain is None or yardstick is None else f"{(plain - found) / (plain - yardstick):.0%}",
                format_size(first["inference_memory"]), format_size(state), format_count(first["flops_per_token"]),
                format_count(statistics.median(one["trained_per_second"] for one in runs)),
            )  # fmt: skip
        Console(width=150).print(table)


def best_rates(known: list[Result]) -> dict[str, list[Result]]:
    """Of each form the runs, one a seed, at the rates with the best validation; of rates that all seeds have."""
    by_form: dict[str, dict[tuple[float, float], list[Result]]] = {}
    for one in known:
        by_form.setdefault(one["form"], {}).setdefault((one["rate"], one["own_rate"]), []).append(one)
    best = {}
    for form, rates in by_form.items():
        seeds = max(len(runs) for runs in rates.values())
        whole = [runs for runs in rates.values() if len(runs) == seeds]
        best[form] = min(whole, key=lambda runs: statistics.fmean(one["validated"] for one in runs))
    return best


def mean(runs: list[Result]) -> float:
    """Test perplexity per word, over seeds."""
    return statistics.fmean(one["perplexity"] for one in runs)


if __name__ == "__main__":
    main()
