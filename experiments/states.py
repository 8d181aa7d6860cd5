"""What a state is worth at its memory: before training, after next tokens, and after a teacher.

    python experiments/states.py --base smollm2.gguf --corpus text:books --processes 6 --rates 3e-4 --seeds 0 1
    python experiments/states.py --base smollm2.gguf --corpus text:books --forms "cache 32" delta --facts 48

Every form is scored on the test split before any training (loss "untrained"), and after it was trained with each of
--losses at each of --rates with each of --seeds: on the openings of the documents, cut into pieces that are read side
by side. With --facts it is also asked for facts from far back. A run is a line of --out; the same command continues
after a stop, and no run begins after --minutes. The table that it prints has the rate with the best validation.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from typing import Any, get_args

from comparison_results import Result
from rich.console import Console
from rich.table import Table
from runs import Job, Record, add_arguments, folder_name, processes, trained
from untrained_states import score

from recur_tune.analysis.look.recall import make_questions, recall
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
from recur_tune.training.setup import teach, untrained


def cached(rows: int, keep: str = "recent", every: int = 0, bits: int = 16) -> dict[str, Any]:
    """A cache; its overflow, if it has one, is in every so many layers."""
    overflow = {"overflow": "gated_delta", "delta_every": every} if every else {}
    return {"recurrence": "cache", "cache_rows": rows, "cache_keep": keep, "cache_bits": bits, **overflow}


PLAIN, YARDSTICK = "plain", "cache 128"
# On SmolLM2 a matrix in every layer holds as much as 32 rows; 128 rows as much as 227 of 8 bits or 409 of 4.
FORMS: dict[str, dict[str, Any]] = {
    PLAIN: {"recurrence": "none"},
    YARDSTICK: cached(128),
    **{f"cache 128, {keep}": cached(128, keep) for keep in ("keydiff", "tova", "h2o")},
    "cache 96 + delta": cached(96, every=1),
    "cache 96, keydiff + delta": cached(96, "keydiff", every=1),
    "cache 112, keydiff + delta/2": cached(112, "keydiff", every=2),
    "cache 227, 8 bits": cached(227, bits=8),
    "cache 227, 8 bits, keydiff": cached(227, "keydiff", bits=8),
    "cache 409, 4 bits": cached(409, bits=4),
    "cache 409, 4 bits, keydiff": cached(409, "keydiff", bits=4),
    "cache 102, 4 bits": cached(102, bits=4),
    "cache 102, 4 bits, keydiff": cached(102, "keydiff", bits=4),
    "cache 32": cached(32),
    "cache 32, keydiff": cached(32, "keydiff"),
    "cache 16 + delta/2": cached(16, every=2),
    "cache 16, keydiff + delta/2": cached(16, "keydiff", every=2),
    "cache 4 + delta/2": cached(4, every=2),
    "delta": {"recurrence": "gated_delta"},
    "delta/2": {"recurrence": "gated_delta", "delta_every": 2},
    "ttt": {"recurrence": "ttt"},
    "ttt/15": {"recurrence": "ttt", "ttt_every": 15},
    "fast weights": {"recurrence": "fast_weights"},
    "pooled": {"recurrence": "pooled", "l_ins": "all", "pooling": "recent", "embeddings": 8, "skip": True},
    "tokens": {"recurrence": "tokens", "state_tokens": 16},
    "blocks": {"recurrence": "blocks", "state_vectors": 16},
    "scores": {"recurrence": "scores"},
}
UNTRAINED = "untrained"
LOSSES = (UNTRAINED, "next_token", "distill")
NAMES = ("form", "reading", "loss", "rate", "seed")


def main() -> None:
    """Score, train, write and print."""
    arguments = parsed_arguments()
    record = Record(arguments.out, NAMES)
    if "distill" in arguments.losses:
        make_teacher(arguments)
    with processes(arguments.processes) as mapping:
        record.run(mapping, run, arguments, jobs(arguments), lambda result: result["perplexity"])
    print_tables(record.results)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, "states")
    parser.set_defaults(readings=["100/0"], rates=[1e-4, 3e-4, 6e-4], own_rate=3e-3)
    parser.add_argument("--corpus", required=True, help="as `recur-tune data list` names them")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--train-tokens", type=parse_count, default=3_000_000)
    parser.add_argument("--teacher-window", type=int, default=2048)
    parser.add_argument("--tokens", type=parse_count, default=400_000, help="of the test split that every form scores")
    parser.add_argument("--pieces", type=parse_count, default=4000, metavar="TOKENS", help="of a document")
    parser.add_argument("--positions", type=int, default=16_384, help="tokens read at a time, over all pieces")
    parser.add_argument("--precision", choices=get_args(Precision), default="auto")
    parser.add_argument("--facts", type=int, default=0, metavar="QUESTIONS", help="asked at every distance")
    parser.add_argument("--distances", nargs="+", type=parse_count, default=[2000, 8000, 20_000])
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no run begins later")
    arguments = parser.parse_args()
    arguments.until = time.time() + 60 * arguments.minutes
    return arguments


def jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    """What needs no training first; then whole rates and seeds, so that a stop leaves forms that compare."""
    losses = [loss for loss in arguments.losses if loss != UNTRAINED]
    if UNTRAINED in arguments.losses:
        yield from (
            (form, reading, UNTRAINED, 0.0, 0) for form, reading in product(arguments.forms, arguments.readings)
        )
    for seed, rate, loss, reading, form in product(
        arguments.seeds, arguments.rates, losses, arguments.readings, arguments.forms
    ):
        yield form, reading, loss, rate, seed


def config_of(arguments: argparse.Namespace, job: Job) -> TrialConfig:
    """The trial of a job."""
    form, reading, loss, rate, seed = job
    window, overlap = map(int, reading.split("/"))
    fields = {
        "base": arguments.base, "corpus": arguments.corpus, "precision": arguments.precision, "window": window,
        "overlap": overlap, "batch": max(4800 // window, 1), "bptt_windows": 10, "decay": "cosine",
        "checkpointing": "none", "tokens": arguments.train_tokens, "seed": seed,
    }  # fmt: skip
    if loss != UNTRAINED:
        fields |= {"learning_rate": rate, "recurrence_rate": max(1.0, arguments.own_rate / rate), "loss": loss}
    if loss == "distill":
        fields["teacher_window"] = arguments.teacher_window
    return parse(TrialConfig, fields | dict(pair.split("=", 1) for pair in arguments.set) | FORMS[form])


def make_teacher(arguments: argparse.Namespace) -> None:
    """The teacher's predictions, which all runs share."""
    told = list[str]()

    def listen(text: str, tokens: int, total: int) -> None:
        if not told:
            print(text, flush=True)
        told.append(text)

    teach(config_of(arguments, (PLAIN, arguments.readings[0], "distill", arguments.rates[0], 0)), listen)


def run(given: tuple[argparse.Namespace, Job]) -> Result | None:
    """Train a model, where its loss says so, and score it, in a process that has done others before."""
    arguments, job = given
    if time.time() > arguments.until:
        return None
    config, told = config_of(arguments, job), dict(zip(NAMES, job, strict=True))
    if told["loss"] == UNTRAINED:
        model, tokenizer = untrained(config)
        assert isinstance(model, WindowedDecoder), "a corpus of texts refuses encoders"
        costs = quick_costs(config, model.config.shape, base_settings(arguments.base, config.tokenizer))
        return told | costs | scored(model, tokenizer, config, arguments)
    folder = arguments.runs / folder_name(*job)
    result = trained(config, folder)
    model, tokenizer = load_decoder(folder)
    found = scored(model.to(default_device()), tokenizer, config, arguments)
    shutil.rmtree(folder)
    return told | result | {"training_speed": result["tokens_per_second"]} | found


def scored(model: WindowedDecoder, tokenizer: Any, config: TrialConfig, arguments: argparse.Namespace) -> Result:
    """Perplexity on the test split, and how often facts are found."""
    split = pieces(config.corpus, tokenizer, arguments.tokens, arguments.pieces)
    found = score(model, config, split, arguments)
    if arguments.facts:
        found["recall"] = asked(model, tokenizer, config, arguments)
    return found


_PIECES: dict[tuple[str, int, int], TokenisedSplit] = {}  # kept from job to job


def pieces(corpus: str, tokenizer: Any, tokens: int, size: int) -> TokenisedSplit:
    """The openings of the test split's documents, so many tokens in all, in pieces."""
    key = corpus, tokens, size
    if key not in _PIECES:
        whole = prepare(corpus, "test", tokenizer)
        documents = len(whole.document_starts) - 1
        _PIECES[key] = whole.openings(max(tokens // documents, 2)).pieces(size)
    return _PIECES[key]


def asked(
    model: WindowedDecoder, tokenizer: Any, config: TrialConfig, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """How often facts are found, at every distance."""
    split, found = prepare(config.corpus, "test", tokenizer), []
    for distance in arguments.distances:
        questions = make_questions(split, tokenizer, distance, arguments.facts)
        found.append(asdict(recall(model, questions, distance, config.windowing, 24, arguments.precision)))
    return found


def print_tables(results: list[Result]) -> None:
    """One for each reading: forms by their memory, and of each loss the mean over seeds at its best rate."""
    for reading in dict.fromkeys(one["reading"] for one in results):
        best = best_rates([one for one in results if one["reading"] == reading])
        size = {form: runs[0]["inference_memory"] for (form, _), runs in best.items()}
        table = Table(
            reading, "memory", "FLOPs/token", *LOSSES, "rates", f"against {YARDSTICK}", "of its gain", box=None
        )
        for form in sorted(size, key=lambda name: (size[name], name)):
            of_it = {loss: best[form, loss] for loss in LOSSES if (form, loss) in best}
            first = next(iter(of_it.values()))[0]
            table.add_row(
                form, format_size(size[form]), format_count(first["flops_per_token"]),
                *(in_words(of_it.get(loss, [])) for loss in LOSSES),
                " ".join(f"{runs[0]['rate']:g}" for loss, runs in of_it.items() if loss != UNTRAINED),
                *against_yardstick(best, form),
            )  # fmt: skip
        Console(width=170).print(table)
    print_recall(results)


def best_rates(results: list[Result]) -> dict[tuple[str, str], list[Result]]:
    """Of each form and loss the runs, one a seed, at the rate with the best validation of those that all seeds have."""
    rates: dict[tuple[str, str], dict[float, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for one in results:
        rates[one["form"], one["loss"]][one["rate"]].append(one)
    best = {}
    for key, by_rate in rates.items():
        seeds = max(map(len, by_rate.values()))
        whole = [runs for runs in by_rate.values() if len(runs) == seeds]
        best[key] = whole[0] if len(whole) == 1 else min(whole, key=validated)
    return best


def validated(runs: list[Result]) -> float:
    """The mean loss of validation."""
    return statistics.fmean(one["validation"]["loss"] for one in runs)


def mean(runs: list[Result]) -> float:
    """Test perplexity per word, over seeds."""
    return statistics.fmean(one["perplexity"] for one in runs)


def in_words(runs: list[Result]) -> str:
    """The mean, and the seeds where there are several."""
    if not runs:
        return ""
    seeds = ", ".join(f"{one['perplexity']:.4g}" for one in runs)
    return f"{mean(runs):.4g} ({seeds})" if len(runs) > 1 else seeds


def against_yardstick(best: dict[tuple[str, str], list[Result]], form: str) -> tuple[str, str]:
    """After next tokens: how far a form is from the yardstick, and its share of the yardstick's gain over plain."""
    own, yardstick, plain = (best.get((name, "next_token")) for name in (form, YARDSTICK, PLAIN))
    if own is None or yardstick is None:
        return "", ""
    share = "" if plain is None else f"{(mean(plain) - mean(own)) / (mean(plain) - mean(yardstick)):.0%}"
    return f"{mean(own) / mean(yardstick) - 1:+.1%}", share


def print_recall(results: list[Result]) -> None:
    """How often facts were found and how often chosen of eight, by distance."""
    told = [one for one in results if "recall" in one]
    if not told:
        return
    distances = sorted({found["distance"] for one in told for found in one["recall"]})
    table = Table(
        "facts found, and chosen of 8", *NAMES[1:], *(f"{distance:,} ago" for distance in distances), box=None
    )
    for one in told:
        cells = {found["distance"]: f"{found['found']:.0%} {found['chosen']:.0%}" for found in one["recall"]}
        table.add_row(*(f"{one[name]}" for name in NAMES), *(cells.get(distance, "") for distance in distances))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
