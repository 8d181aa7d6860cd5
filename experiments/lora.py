"""LoRA, the recurrence alone and all weights on one base: speed and memory beside transformers with peft, and quality.

    PYTHONPATH=. python experiments/lora.py speed --base Qwen/Qwen2.5-1.5B --readings 300/16x10 2048/4x6
    PYTHONPATH=. python experiments/lora.py quality --base models/qwen --corpus text:books --tokens 4M
    PYTHONPATH=. python experiments/lora.py table --out lora.jsonl

A reading is WINDOW/CHAINSxWINDOWS: windows of so many tokens, in so many chains of so many windows. Every measurement
is a line of --out as soon as it is made, and none is made twice: a call that was stopped goes on, and several calls may
share the work (--learns, --readings, --recurrences, --rivals).

`speed` trains on one batch of random tokens, by `benchmarks/train_step.py`'s clock; a published shape has random
weights, a folder its own. "peft" is Hugging Face's own model of the base in bfloat16, wrapped by peft, under autocast,
without recurrence, with gradient accumulation over micro-batches of whole windows; peft has to be importable.
`quality` trains and scores: every way to learn, every recurrence, every window. A model is deleted when it is scored.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from runs import folder_name, trained
from transformers import AutoModelForCausalLM, PretrainedConfig

from benchmarks.train_step import (
    Line,
    compiled_with_loss,
    eager,
    first_steps,
    forget,
    random_batch,
    rate,
    stock_step,
)
from recur_tune.bptt.chain import Chain
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import chosen_execution
from recur_tune.bptt.step import train_step
from recur_tune.bptt.trained import trained_of
from recur_tune.common.parsing import parse
from recur_tune.common.units import format_count, format_size, parse_count
from recur_tune.config.base_shape import base_settings
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.training_memory import plan_memory, resolve_plan
from recur_tune.data.batches import WindowBatch
from recur_tune.models.pretrained import fresh_model, load_base, recurrent_config
from recur_tune.models.trained import lay_frozen_together
from recur_tune.ops.device import default_device, device_name, uses_bfloat16
from recur_tune.ops.out_of_memory import is_out_of_memory

NAMES = ("part", "reading", "learns", "recurrence", "way", "seed")  # what is told of a line
Row = dict[str, Any]


def main() -> None:
    """Measure what is not known yet, and print all of it."""
    arguments = parsed_arguments()
    record = Record(arguments.out)
    if arguments.part == "speed":
        for reading in arguments.readings:
            measure(record, reading, arguments)
    elif arguments.part == "quality":
        for row, make in quality_runs(arguments):
            record.add(row, make)
    record.show()


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "quality", "table"])
    parser.add_argument("--base", default="tiny", help="a folder, or for speed a preset or a published shape")
    parser.add_argument("--out", type=Path, default=Path("lora.jsonl"), help="where the numbers go")
    parser.add_argument("--readings", nargs="+", default=["300/16x10", "2048/4x6"], type=Reading.read)
    parser.add_argument("--ranks", nargs="*", type=int, default=[4, 16, 64], help="of LoRA, each a line")
    parser.add_argument("--learns", nargs="*", default=["lora", "recurrence", "all"], help="ways to learn")
    parser.add_argument("--recurrences", nargs="+", default=["none", "cache"])
    parser.add_argument("--checkpointing", nargs="+", default=["all", "none"], help="plans of ours, each a line")
    parser.add_argument("--rivals", nargs="*", default=["eager", "compiled"], help="ways to run peft's model")
    parser.add_argument("--rival-rank", type=int, default=16)
    parser.add_argument(
        "--micro-batches", nargs="*", type=int, default=[4, 8, 16, 32], help="windows at a time of peft"
    )
    parser.add_argument("--targets", default="all", choices=["attention", "mlp", "all"])
    parser.add_argument("--steps", type=int, default=5, help="timed steps in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--corpus", help="for quality")
    parser.add_argument("--tokens", type=parse_count, default=4_000_000, help="for quality: of each run")
    parser.add_argument("--runs", type=Path, default=Path("runs/lora"), help="for quality: where models go")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rate", type=float, default=2e-4, help="for quality: LoRA's learning rate")
    parser.add_argument("--own-rate", type=float, default=1e-3, help="for quality: the recurrence's learning rate")
    parser.add_argument("--whole-rate", type=float, default=2e-5, help="for quality: the base's where all of it learns")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="fields of all trials")
    arguments = parser.parse_args()
    if arguments.part == "speed" and arguments.rivals and arguments.targets != "all":
        parser.error("--targets: peft's model has LoRA at all linear modules; give --targets all, or --rivals alone.")
    return arguments


@dataclass(frozen=True)
class Reading:
    """Windows of a size, and how many of them a step reads."""

    window: int
    chains: int
    windows: int

    @classmethod
    def read(cls, text: str) -> Reading:
        window, _, rest = text.partition("/")
        chains, _, windows = rest.partition("x")
        return cls(int(window), int(chains), int(windows))

    def __str__(self) -> str:
        return f"{self.window}/{self.chains}x{self.windows}"

    @property
    def fields(self) -> dict[str, int]:
        return {"window": self.window, "batch": self.chains, "bptt_windows": self.windows}


class Record:
    """Measurements in a file of JSON lines."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: list[Row] = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def add(self, row: Row, make: Callable[[], Row]) -> None:
        """Make a measurement that is not known yet; what does not fit into memory is a result too."""
        if any(row.items() <= one.items() for one in self.rows):
            return
        forget(default_device())  # the model before
        try:
            found = make()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            found = {"out_of_memory": True}
        self.rows.append(row | found)
        with self.file.open("a") as out:
            out.write(json.dumps(row | found) + "\n")
        print(" ".join(str(row.get(name)) for name in NAMES), told(found), flush=True)

    def show(self) -> None:
        """All of them, one table a reading."""
        console = Console(width=150)
        for part, reading in dict.fromkeys((row["part"], row["reading"]) for row in self.rows):
            rows = [row for row in self.rows if (row["part"], row["reading"]) == (part, reading)]
            best = max((row["rate"] for row in rows if row["way"].startswith("peft") and "rate" in row), default=None)
            table = Table(f"{part}, {reading}", "learns", "recurrence", "result", "of the best peft", box=None)
            for row in rows:
                share = f"{row['rate'] / best:.2f} x" if best and "rate" in row else ""
                table.add_row(row["way"], row["learns"], row["recurrence"], told(row), share)
            console.print(table)


def told(row: Row) -> str:
    if row.get("out_of_memory"):
        return "out of memory"
    if "perplexity" in row:
        return f"perplexity {row['perplexity']:.4g}, {format_size(row['peak'])}, {format_count(row['rate'])} tokens/s"
    spread = f"{format_count(min(row['rates']))} to {format_count(max(row['rates']))}"
    predicted = f", {row['predicted'] / row['peak'] - 1:+.1%} predicted" if row.get("predicted") else ""
    return f"{format_count(row['rate'])} tokens/s ({spread}), {format_size(row['peak'])}{predicted}"


def ways_to_learn(arguments: argparse.Namespace, recurrence: str) -> Iterator[tuple[str, Row]]:
    """Each with its name and its fields."""
    if "lora" in arguments.learns:
        for rank in arguments.ranks:
            yield f"lora {rank}", {"trainable": "lora", "lora_rank": rank, "lora_targets": arguments.targets}
    for one in ("recurrence", "all"):
        if one in arguments.learns and (one == "all" or recurrence != "none"):
            yield one, {"trainable": one}


def settings(arguments: argparse.Namespace) -> Row:
    return dict(one.split("=", 1) for one in arguments.set)


def measure(record: Record, reading: Reading, arguments: argparse.Namespace) -> None:
    """A training step of ours and of peft's, in every way, at one reading."""
    device = default_device()
    base = base_settings(arguments.base, None)
    trial = TrialConfig(base=arguments.base, recurrence="none", **reading.fields)
    batch = random_batch(trial, base.vocab_size).to(device)
    common = {
        "part": "speed", "base": arguments.base, "reading": str(reading), "seed": 0, "device": device_name(device),
        "torch": torch.__version__, "targets": arguments.targets, "set": " ".join(arguments.set),
    }  # fmt: skip
    for recurrence in arguments.recurrences:
        for learns, fields in ways_to_learn(arguments, recurrence):
            for policy in arguments.checkpointing:
                given = {"base": arguments.base, "recurrence": recurrence, "checkpointing": policy, "tokens": "20M"}
                config = parse(TrialConfig, given | reading.fields | fields | settings(arguments))
                row = common | {"learns": learns, "recurrence": recurrence, "way": f"ours, {policy}"}
                record.add(row, lambda config=config: measured_ours(config, base, batch, device, arguments))
    total = reading.chains * reading.windows
    for way in arguments.rivals:
        for size in (one for one in dict.fromkeys([reading.chains, *arguments.micro_batches]) if one <= total):
            learns = f"lora {arguments.rival_rank}"
            row = common | {"learns": learns, "recurrence": "none", "way": f"peft, {way}, {size} windows at a time"}
            record.add(row, lambda way=way, size=size: measured_peft(way, size, base, batch, device, arguments))


def measured_ours(
    config: TrialConfig, base: PretrainedConfig, batch: WindowBatch, device: torch.device, arguments: argparse.Namespace
) -> Row:
    plan = resolve_plan(config, base)
    predicted = plan_memory(config, base, plan, config.batch)
    if device.type == "cuda" and predicted > torch.cuda.get_device_properties(device).total_memory:
        return {"out_of_memory": True, "predicted": predicted}
    if Path(config.base).is_dir():
        model = load_base(config.base, config.recurrence_spec)
        trained_of(config, device).apply(model)
        model = model.to(device).train()
    else:
        with device:  # random weights are made where they are needed
            model = fresh_model(recurrent_config(base, config.recurrence_spec, None)).train()
        trained_of(config, device).apply(model)
    lay_frozen_together(model)
    chain = Chain(model, plan, chosen_execution(config, device))
    optimizer = make_optimizer(model, 1e-4, 0.0)
    line = Line(
        "ours",
        lambda: train_step(chain, optimizer, batch, 1.0, config.precision),
        lambda tracker: tracker.hold_training(model, optimizer, batch),
    )
    return clocked(line, batch, device, arguments) | {"predicted": predicted, "kept_windows": plan.kept_windows}


def measured_peft(
    way: str, size: int, base: PretrainedConfig, batch: WindowBatch, device: torch.device, arguments: argparse.Namespace
) -> Row:
    from peft import LoraConfig, get_peft_model

    dtype = torch.bfloat16 if uses_bfloat16(device, "auto") else torch.float32
    if Path(arguments.base).is_dir():
        stock = AutoModelForCausalLM.from_pretrained(arguments.base, dtype=dtype).to(device)
    else:
        with device:
            stock = AutoModelForCausalLM.from_config(base, dtype=dtype)
    rank = arguments.rival_rank
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a Conv1D's weight is the other way round
        targets = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(stock, targets).train()
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=1e-4, weight_decay=0.0, fused=True)
    loss = {"eager": eager, "compiled": compiled_with_loss}[way](model)
    line = Line(
        "peft",
        lambda: stock_step(loss, optimizer, batch, size),
        lambda tracker: tracker.hold_training(model, optimizer, batch),
    )
    return clocked(line, batch, device, arguments)


def clocked(line: Line, batch: WindowBatch, device: torch.device, arguments: argparse.Namespace) -> Row:
    """The median of several rounds, and the peak."""
    first, peak = first_steps(line, device)
    rates = [rate(line, arguments.steps, batch, device) for _ in range(arguments.rounds)]
    return {"rate": statistics.median(rates), "rates": rates, "peak": peak, "first_step": first}


def quality_runs(arguments: argparse.Namespace) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Every way to learn with every recurrence at every reading, by the same tokens."""
    for reading in arguments.readings:
        for recurrence in arguments.recurrences:
            for learns, fields in ways_to_learn(arguments, recurrence):
                for seed in arguments.seeds:
                    rate = arguments.whole_rate if learns == "all" else arguments.rate
                    given = {
                        "base": arguments.base, "corpus": arguments.corpus, "recurrence": recurrence, "seed": seed,
                        "tokens": arguments.tokens, "validate_every": arguments.tokens, "decay": "cosine",
                        "learning_rate": rate, "recurrence_rate": max(1.0, arguments.own_rate / rate),
                    }  # fmt: skip
                    config = parse(TrialConfig, given | reading.fields | fields | settings(arguments))
                    row = {
                        "part": "quality", "base": arguments.base, "reading": str(reading), "learns": learns,
                        "recurrence": recurrence, "way": f"ours, rate {rate:g}", "seed": seed,
                        "corpus": arguments.corpus, "tokens": arguments.tokens, "targets": arguments.targets,
                        "set": " ".join(arguments.set),
                    }  # fmt: skip
                    folder = arguments.runs / folder_name(reading, learns, recurrence, seed)
                    yield row, lambda config=config, folder=folder: scored(config, folder)


def scored(config: TrialConfig, folder: Path) -> Row:
    """Train a run; its last validation, its costs and its speed."""
    result = trained(config, folder)
    shutil.rmtree(folder)  # its numbers are what is kept: a model is four bytes a weight
    last = result["last_validation"]
    return {
        "perplexity": last.get("perplexity") or last["token_perplexity"], "validation": last,
        "untrained": result["untrained_validation"],
        "peak": result["measured_peak_memory"] or result["peak_memory"], "predicted": result["peak_memory"],
        "rate": result["tokens_per_second"], "training_flops_per_token": result["training_flops_per_token"],
        "inference_memory": result["inference_memory"], "trained_parameters": result["trained_parameters"],
    }  # fmt: skip


if __name__ == "__main__":
    main()
