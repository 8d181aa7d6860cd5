"""The paper's comparison: the same base fine-tuned with and without a recurrence, on the same tokens.

    python experiments/paper_comparison.py --base runs/mini --corpus text:books --out results.json \\
        --readings 300/0 300/10 300/30 300/50 100/0 --seeds 0 1 --set tokens=40M batch=32 learning_rate=1e-3

For every window/overlap and seed it trains both and scores validation and test documents. As controls the recurrent
model is scored with no state and with another document's. Results are written after every run, and the same command
continues after a stop. experiments/comparison_results.py reads them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

import torch
from comparison_results import METRICS, STATES, Result, print_tables, read_results
from scoring import Scoring

from recur_tune.common.files import write_text
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.recurrences.registry import DEFAULT, NONE, canonical
from recur_tune.training.loop import Report
from recur_tune.training.run_folder import run_in_folder


def main() -> None:
    """Train, score, write and print."""
    arguments = parsed_arguments()
    results: list[Result] = read_results(arguments.out) if arguments.out.exists() else []
    known = {(one["reading"], one["seed"], one["recurrence"]) for one in results}
    for seed in arguments.seeds:
        for reading in arguments.readings:
            for recurrence in map(canonical, arguments.recurrences):
                if (reading, seed, recurrence) not in known:
                    results.append(run(arguments, reading, seed, recurrence))
                    write_text(arguments.out, json.dumps(results))
    print_tables(results, METRICS[arguments.metric])


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="folder of the GPT-2 that every run starts from")
    parser.add_argument("--corpus", required=True, help="as `recur-tune data list` names them")
    parser.add_argument("--out", type=Path, default=Path("results.json"), help="where the numbers go")
    parser.add_argument("--runs", type=Path, default=Path("runs/comparison"), help="where models go")
    parser.add_argument("--readings", nargs="+", default=["300/0"], help="windows and overlaps")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--recurrences", nargs="+", default=[NONE, DEFAULT], help="all that are compared")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="of all trials")
    parser.add_argument("--set-recurrent", nargs="*", default=[], metavar="FIELD=VALUE", help="of recurrent ones")
    parser.add_argument("--metric", choices=METRICS, default="perplexity", help="what is printed")
    Scoring.add_arguments(parser)
    return parser.parse_args()


def run(arguments: argparse.Namespace, reading: str, seed: int, recurrence: str) -> Result:
    """Train one model and score it."""
    window, overlap = map(int, reading.split("/"))
    chosen = dict(pair.split("=", 1) for pair in arguments.set)
    if recurrence != NONE:
        chosen |= dict(pair.split("=", 1) for pair in arguments.set_recurrent)
    fields = {"base": arguments.base, "corpus": arguments.corpus, "window": window, "overlap": overlap, "seed": seed}
    config = parse(TrialConfig, fields | chosen | {"recurrence": recurrence})
    folder = arguments.runs / f"{recurrence}-{window}-{overlap}-{seed}-{int(time.time())}"
    print(f"{recurrence} {reading} seed {seed}", flush=True)
    started = time.perf_counter()
    steps: list[Report] = []
    trained = run_in_folder(config, folder, resume=False, listen=steps.append)
    seconds = time.perf_counter() - started
    states = ["own"] if recurrence == NONE else list(STATES)
    scores = Scoring.of(arguments).scores(folder, config.corpus, config.windowing, states)
    for split, of_split in scores.items():
        for state, scored in of_split.items():
            print(f"  {split}, {state} state: {scored[arguments.metric]:.4g}", flush=True)
    result: Result = {
        "reading": reading, "seed": seed, "recurrence": recurrence, "config": config.model_dump(), **trained,
        "seconds": seconds,
        "tokens_per_second": statistics.median(step.tokens_per_second for step in steps),
        "scores": scores,
    }  # fmt: skip
    gc.collect()
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return result


if __name__ == "__main__":
    main()
