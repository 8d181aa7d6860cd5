"""States that learn from scratch, with and without a teacher; and how often facts from far back are found.

    python experiments/distillation.py --base smollm2.gguf --corpus text:books --to distillation \
        --kinds plain pooled --rates 1e-4 3e-4 --seeds 0 1
    python experiments/distillation.py --base smollm2.gguf --corpus text:books --to distillation --part recall
    python experiments/distillation.py --to distillation --part table

Part `train` trains every kind with each loss, rate and seed, and scores the test split; part `recall` asks a base with
untrained caches, and the folders in --runs, for facts. Each result is a JSON file in --to. A call with results there
makes what is missing, and begins no run after --minutes. Part `table` prints what is there: of each kind and loss, per
seed, the run with the best validation.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, get_args

from runs import folder_name, trained
from untrained_states import score

from recur_tune.analysis.look.recall import make_questions, recall
from recur_tune.common.parsing import parse
from recur_tune.common.precision import Precision
from recur_tune.common.units import parse_count
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.data.tokens import prepare
from recur_tune.models import WindowedDecoder
from recur_tune.models.pretrained import load_decoder
from recur_tune.ops.device import default_device
from recur_tune.training.setup import teach, untrained

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"recurrence": "none"},
    "pooled": {"recurrence": "pooled", "l_ins": "all", "embeddings": 8, "pooling": "recent"},
    "tokens": {"recurrence": "tokens", "state_tokens": 16},
    "blocks": {"recurrence": "blocks", "state_vectors": 16},
    "fast_weights": {"recurrence": "fast_weights"},
}
Result = dict[str, Any]


def main() -> None:
    """Run a part, then print all that is there."""
    arguments = parsed_arguments()
    arguments.to.mkdir(parents=True, exist_ok=True)
    if arguments.part != "table" and not (arguments.base and arguments.corpus):
        raise SystemExit("--base and --corpus are needed, except by --part table")
    if arguments.part == "train":
        train_all(arguments)
    elif arguments.part == "recall":
        recall_all(arguments)
    print_tables(arguments.to)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="as `recur-tune train --base` takes it")
    parser.add_argument("--corpus", help="as `recur-tune data list` names them")
    parser.add_argument("--to", type=Path, required=True, help="folder of results")
    parser.add_argument("--part", choices=["train", "recall", "table"], default="train")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--losses", nargs="+", default=["next_token", "distill"])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-4, 3e-4], help="the base's learning rates")
    parser.add_argument("--own-rate", type=float, default=1e-3, help="learning rate of what a recurrence adds")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--tokens", type=parse_count, default=1_000_000, help="that a run is trained on")
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--teacher-window", type=int, default=2048)
    parser.add_argument("--teacher-weight", type=float, default=0.5)
    parser.add_argument("--teacher-top", type=int, default=32)
    parser.add_argument("--documents", type=int, help="train on so many of the training split's, of a text: corpus")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="of all trials")
    parser.add_argument("--test-tokens", type=parse_count, default=400_000)
    parser.add_argument("--pieces", type=parse_count, default=4000, metavar="TOKENS", help="scored side by side")
    parser.add_argument("--positions", type=int, default=16_384, help="tokens read at a time, over all pieces")
    parser.add_argument("--precision", choices=get_args(Precision), default="auto")
    parser.add_argument("--ask", action="store_true", help="ask every trained model for facts, too")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="trained folders, for --part recall")
    parser.add_argument("--cache-rows", nargs="+", type=int, default=[128, 512], help="of the untrained caches")
    parser.add_argument("--distances", nargs="+", type=parse_count, default=[2000, 8000, 20_000])
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--minutes", type=float, default=8.0, help="no run begins later")
    return parser.parse_args()


def train_all(arguments: argparse.Namespace) -> None:
    """Every kind, with the runs of a kind and seed side by side in the order, so that a stop leaves whole rows."""
    started, left, folder = time.monotonic(), 0, arguments.to / "run"
    corpus = arguments.corpus if arguments.documents is None else part_of(arguments.corpus, arguments.documents)
    if "distill" in arguments.losses:
        make_teacher(arguments, corpus)
    for kind, seed, loss, rate in product(arguments.kinds, arguments.seeds, arguments.losses, arguments.rates):
        name = folder_name("train", kind, loss, rate, seed)
        if (arguments.to / f"{name}.json").exists():
            continue
        if time.monotonic() - started > 60 * arguments.minutes:
            left += 1
            continue
        config = config_of(arguments, corpus, kind, seed, loss, rate)
        shutil.rmtree(folder, ignore_errors=True)
        result = trained(config, folder)
        model, tokenizer = load_decoder(folder)
        model = model.to(default_device())
        split = prepare(arguments.corpus, "test", tokenizer)
        documents = len(split.document_starts) - 1
        short = split.openings(max(arguments.test_tokens // documents, 2)).pieces(arguments.pieces)
        told = {"kind": kind, "loss": loss, "rate": rate, "seed": seed, **result}
        found = told | score(model, config, short, arguments)
        found["training_tokens_per_second"] = result["tokens_per_second"]
        if arguments.ask:
            found["recall"] = asked(arguments, model, tokenizer, config.windowing)
        keep(arguments.to, name, found)
        print(f"{name}: {found['perplexity']:.2f}, after {time.monotonic() - started:.0f} s", flush=True)
        shutil.rmtree(folder)
    if left:
        print(f"{left} runs were left out after {arguments.minutes} minutes (--minutes)", flush=True)


def config_of(
    arguments: argparse.Namespace, corpus: str, kind: str, seed: int = 0, loss: str = "next_token", rate: float = 3e-4
) -> TrialConfig:
    """One trial."""
    batch = max(4800 // arguments.window, 1)
    fields = {
        "base": arguments.base, "corpus": corpus, "precision": arguments.precision, "window": arguments.window,
        "tokens": arguments.tokens, "batch": batch, "bptt_windows": 10, "learning_rate": rate, "seed": seed,
        "loss": loss, "teacher_window": arguments.teacher_window, "teacher_weight": arguments.teacher_weight,
        "teacher_top": arguments.teacher_top, **KINDS[kind],
    }  # fmt: skip
    if kind != "plain":
        fields["recurrence_rate"] = max(1.0, arguments.own_rate / rate)
    return parse(TrialConfig, fields | dict(pair.split("=", 1) for pair in arguments.set))


def make_teacher(arguments: argparse.Namespace, corpus: str) -> None:
    """The teacher's predictions, which all runs share; a note of what they take."""
    began, words = time.monotonic(), list[str]()

    def listen(text: str, tokens: int, total: int) -> None:
        if not words:
            print(text, flush=True)
        words.append(text)

    teach(config_of(arguments, corpus, "plain", loss="distill"), listen)
    seconds = time.monotonic() - began
    print(f"the teacher took {seconds:.0f} s{'' if words else ' to be found'}", flush=True)
    if words:
        keep(arguments.to, "teacher", {"text": words[0], "seconds": seconds})


def part_of(corpus: str, documents: int) -> str:
    """A text corpus with so many training documents, evenly spread; links, so that nothing is copied."""
    kind, _, place = corpus.partition(":")
    if kind != "text":
        raise SystemExit("--documents takes a part of a folder of texts, as text:books")
    whole, part = Path(place).resolve(), Path(tempfile.mkdtemp(prefix="texts-"))
    for split in ("validation", "test"):
        (part / split).symlink_to(whole / split)
    (part / "train").mkdir()
    files = sorted(file for file in (whole / "train").iterdir() if file.is_file())
    step = max(1, len(files) // documents)
    for file in files[::step][:documents]:
        (part / "train" / file.name).symlink_to(file)
    return f"text:{part}"


def recall_all(arguments: argparse.Namespace) -> None:
    """The untrained base with caches, and trained folders."""
    started = time.monotonic()
    for name, model, tokenizer, windowing in readers(arguments):
        if time.monotonic() - started > 60 * arguments.minutes:
            print(f"{name} was left out after {arguments.minutes} minutes (--minutes)", flush=True)
            continue
        found = asked(arguments, model, tokenizer, windowing)
        keep(arguments.to, folder_name("recall", name), {"name": name, "recall": found})
        print(f"{name} was asked, after {time.monotonic() - started:.0f} s", flush=True)


def readers(arguments: argparse.Namespace) -> Iterator[tuple[str, WindowedDecoder, Any, Windowing]]:
    """What has not been asked yet."""
    for rows in (0, *arguments.cache_rows):
        name = f"cache of {rows} rows, untrained" if rows else "plain, untrained"
        if not (arguments.to / f"{folder_name('recall', name)}.json").exists():
            cache = {"recurrence": "cache", "cache_rows": rows} if rows else {}
            plain = config_of(arguments, arguments.corpus, "plain")
            config = parse(TrialConfig, plain.plain_values() | cache)
            model, tokenizer = untrained(config)
            assert isinstance(model, WindowedDecoder)
            yield name, model, tokenizer, config.windowing
    for run in arguments.runs:
        if not (arguments.to / f"{folder_name('recall', run.name)}.json").exists():
            model, tokenizer = load_decoder(run)
            yield run.name, model.to(default_device()), tokenizer, model.config.windowing


def asked(arguments: argparse.Namespace, model: WindowedDecoder, tokenizer: Any, windowing: Windowing) -> list[Result]:
    """How often facts are found, at every distance."""
    split, found = prepare(arguments.corpus, "test", tokenizer), []
    for distance in arguments.distances:
        questions = make_questions(split, tokenizer, distance, arguments.questions)
        found.append(asdict(recall(model, questions, distance, windowing, 24, arguments.precision)))
    return found


def keep(folder: Path, name: str, result: Result) -> None:
    """A result in a file of its own."""
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def print_tables(folder: Path) -> None:
    """Each kind and loss, as a mean over seeds of the run with the best validation; then what was asked."""
    files = sorted(folder.glob("*.json"))
    results = {file.stem: json.loads(file.read_text()) for file in files}
    best: dict[tuple[str, str], dict[int, Result]] = defaultdict(dict)
    for name, one in results.items():
        if not name.startswith("train"):
            continue
        of_seed = best[one["kind"], one["loss"]]
        known = of_seed.get(one["seed"])
        if known is None or one["validation"]["loss"] < known["validation"]["loss"]:
            of_seed[one["seed"]] = one
    if best:
        titles = "kind", "loss", "test perplexity, by seed", "mean", "against plain", "rates", "memory", "tokens/s"
        print(f"\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for (kind, loss), of_seed in sorted(best.items()):
        runs = [of_seed[seed] for seed in sorted(of_seed)]
        plain = best.get(("plain", "next_token"), {})
        gains = [one["perplexity"] / plain[one["seed"]]["perplexity"] - 1 for one in runs if one["seed"] in plain]
        gain = f"{statistics.mean(gains):+.1%}" if gains else ""
        told = ", ".join(f"{one['perplexity']:.2f}" for one in runs)
        mean, rates = statistics.mean(one["perplexity"] for one in runs), ", ".join(f"{one['rate']:g}" for one in runs)
        memory, speed = (
            runs[0]["inference_memory"] / 2**20,
            statistics.mean(one["training_tokens_per_second"] for one in runs),
        )
        print(f"| {kind} | {loss} | {told} | {mean:.2f} | {gain} | {rates} | {memory:.2f} MiB | {speed:,.0f} |")
    told = {one.get("name", name): one["recall"] for name, one in results.items() if "recall" in one}
    if told:
        print("\n| read by | tokens ago | questions | found | chosen of 8 |\n|---|---|---|---|---|")
    for name, found in told.items():
        for one in found:
            print(f"| {name} | {one['distance']:,} | {one['asked']} | {one['found']:.1%} | {one['chosen']:.1%} |")


if __name__ == "__main__":
    main()
