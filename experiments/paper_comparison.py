"""The paper's comparison: the same base fine-tuned with and without a recurrence, on the same tokens.

    python experiments/paper_comparison.py --base runs/mini --corpus text:books --out results.json \\
        --readings 300/0 300/10 300/30 300/50 100/0 --seeds 0 1 --set tokens=40M batch=32 learning_rate=1e-3

For every window/overlap and seed it trains both, scores validation and test documents, and gives the recurrent model
no state and another document's as controls. Results are written after every run, so that a run that is cut short
leaves what it has; called again it goes on. Differences are paired over documents: nats per word, with the standard
error of their mean.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from recur_tune.corpus.tokens import prepare
from recur_tune.files import write_text
from recur_tune.model.pretrained import load_model
from recur_tune.spec import TrialConfig, parse
from recur_tune.training.evaluate import evaluate
from recur_tune.training.loop import Report
from recur_tune.training.precision import default_device
from recur_tune.trial.run_folder import run_in_folder
from recur_tune.units import format_count, format_size, parse_count

CONTROLS = {"none": ["own"], "memory": ["own", "none", "other"]}
Result = dict[str, Any]


def main() -> None:
    """Train, score, write and print."""
    arguments = parsed_arguments()
    results: list[Result] = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    known = {(one["reading"], one["seed"], one["recurrence"]) for one in results}
    for seed in arguments.seeds:
        for reading in arguments.readings:
            for recurrence in arguments.recurrences:
                if (reading, seed, recurrence) not in known:
                    results.append(run(arguments, reading, seed, recurrence))
                    write_text(arguments.out, json.dumps(results))
    print_tables(results)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="folder of the GPT-2 that every run starts from")
    parser.add_argument("--corpus", required=True, help="as `recur-tune data list` names them")
    parser.add_argument("--out", type=Path, default=Path("results.json"), help="where the numbers go")
    parser.add_argument("--runs", type=Path, default=Path("runs/comparison"), help="where models go")
    parser.add_argument("--readings", nargs="+", default=["300/0"], help="windows and overlaps")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--recurrences", nargs="+", default=["none", "memory"], help="both, or one of them")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="of both trials")
    parser.add_argument("--set-memory", nargs="*", default=[], metavar="FIELD=VALUE", help="of the recurrent one")
    parser.add_argument("--lanes", type=int, default=64, help="documents scored side by side")
    parser.add_argument(
        "--opening", type=parse_count, metavar="TOKENS", help="score no more of each document than this"
    )
    return parser.parse_args()


def run(arguments: argparse.Namespace, reading: str, seed: int, recurrence: str) -> Result:
    """Train one model and score it."""
    window, overlap = map(int, reading.split("/"))
    chosen = dict(pair.split("=", 1) for pair in arguments.set)
    if recurrence == "memory":
        chosen |= dict(pair.split("=", 1) for pair in arguments.set_memory)
    fields = {"base": arguments.base, "corpus": arguments.corpus, "window": window, "overlap": overlap, "seed": seed}
    config = parse(TrialConfig, fields | chosen | {"recurrence": recurrence})
    folder = arguments.runs / f"{recurrence}-{window}-{overlap}-{seed}-{int(time.time())}"
    print(f"{recurrence} {reading} seed {seed}", flush=True)
    started = time.perf_counter()
    steps: list[Report] = []
    trained = run_in_folder(config, folder, resume=False, listen=steps.append)
    result: Result = {
        "reading": reading, "seed": seed, "recurrence": recurrence, "config": config.model_dump(), **trained,
        "seconds": time.perf_counter() - started,
        "tokens_per_second": statistics.median(step.tokens_per_second for step in steps),
        "scores": scores(arguments, folder, config, recurrence),
    }  # fmt: skip
    gc.collect()
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return result


def scores(arguments: argparse.Namespace, folder: Path, config: TrialConfig, recurrence: str) -> dict[str, Any]:
    """By split and by the state that windows are given."""
    model, tokenizer = load_model(folder)
    model = model.to(default_device())
    found: dict[str, Any] = {}
    for split in ("validation", "test"):
        prepared = prepare(arguments.corpus, split, tokenizer)
        if arguments.opening:
            prepared = prepared.openings(arguments.opening)
        for state in CONTROLS[recurrence]:
            scored = evaluate(model, prepared, config.windowing, arguments.lanes, given=state)  # type: ignore[arg-type]
            found.setdefault(split, {})[state] = scored.report()
            print(f"  {split}, {state} state: {scored.metrics()['word_perplexity']:.2f}", flush=True)
    return found


def print_tables(results: list[Result]) -> None:
    console = Console(width=150)
    table = Table(
        "window/overlap", "seed", "model", "validation", "test", "FLOPs/token", "peak memory", "training", "tokens/s",
        title="perplexity per word", box=None,
    )  # fmt: skip
    for one in results:
        words = [f"{one['scores'][split]['own']['word_perplexity']:.2f}" for split in ("validation", "test")]
        table.add_row(
            one["reading"], str(one["seed"]), one["recurrence"], *words, format_count(one["flops_per_token"]),
            format_size(one["measured_peak_memory_bytes"] or 0), f"{one['seconds']:.0f} s",
            format_count(one["tokens_per_second"]),
        )  # fmt: skip
    console.print(table)
    table = Table(
        "window/overlap", "seed", "split", "change", "nats/word", "standard error", "better documents", "no state",
        "another's state", title="recurrent against plain, paired over documents", box=None,
    )  # fmt: skip
    for plain, recurrent in pairs(results):
        for split in ("validation", "test"):
            rows = {state: differences(plain, recurrent, split, state) for state in CONTROLS["memory"]}
            own = rows["own"]
            perplexities = [one["scores"][split]["own"]["word_perplexity"] for one in (recurrent, plain)]
            error = statistics.stdev(own) / math.sqrt(len(own)) if len(own) > 1 else math.nan
            table.add_row(
                plain["reading"], str(plain["seed"]), split, f"{perplexities[0] / perplexities[1] - 1:+.2%}",
                f"{statistics.mean(own):+.4f}", f"{error:.4f}", f"{sum(one < 0 for one in own)} of {len(own)}",
                *(f"{statistics.mean(rows[state]):+.4f}" for state in ("none", "other")),
            )  # fmt: skip
    console.print(table)


def pairs(results: list[Result]) -> list[tuple[Result, Result]]:
    """The plain and the recurrent model of the same reading and seed."""
    by_key = {(one["reading"], one["seed"], one["recurrence"]): one for one in results}
    keys = dict.fromkeys((one["reading"], one["seed"]) for one in results)
    return [
        (by_key[*key, "none"], by_key[*key, "memory"])
        for key in keys
        if (*key, "none") in by_key and (*key, "memory") in by_key
    ]


def differences(plain: Result, recurrent: Result, split: str, state: str) -> list[float]:
    """Nats per word by document, recurrent less plain."""
    one, other = plain["scores"][split]["own"], recurrent["scores"][split][state]
    return [
        (ours - theirs) / words
        for ours, theirs, words in zip(other["document_nll"], one["document_nll"], one["document_words"], strict=True)
        if words
    ]


if __name__ == "__main__":
    main()
