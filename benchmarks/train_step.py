"""Tokens per second and peak memory of a training step: stock Hugging Face and ours, in one run.

    python benchmarks/train_step.py                                  # small sizes, for a CPU
    python benchmarks/train_step.py --base gpt2 --batch 16 64 --window 300 --bptt-windows 20 --budget 16GiB 80GiB
    python benchmarks/train_step.py --base HuggingFaceTB/SmolLM2-135M --batch 16 --window 300 --bptt-windows 20

Every line trains on the same batch: random tokens or, with --corpus and --tokenizer, a text. "Stock" is Hugging Face's
own model without recurrence and recomputation, with gradient accumulation over micro-batches. Its windows do not depend
on each other, so any number of them can be a micro-batch. "Of the best stock" is relative to the fastest stock line.
Speeds are the median of several rounds, with the slowest and the fastest. On a CPU the lines take turns, one round
each, and seconds are CPU time, because other processes may use the CPU too. Utilisation is the model's own FLOPs per
second, without recomputation, over those of a product of large matrices.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, islice
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import Execution, Plan
from recur_tune.bptt.step import train_step
from recur_tune.common.known_shapes import DROPOUTS
from recur_tune.common.parsing import parse
from recur_tune.common.shape import shape_of
from recur_tune.common.units import format_count, format_size
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.device_flops import device_flops
from recur_tune.cost.flops import training_flops_per_token
from recur_tune.cost.training_memory import resolve_plan
from recur_tune.data.batches import WindowBatch
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.data.tokens import prepare
from recur_tune.models.pretrained import base_config, fresh_model, recurrent_config
from recur_tune.ops.device import autocast, default_device, device_name
from recur_tune.tasks.language_modelling.windows import TextStream

EXECUTIONS = {
    "eager": Execution(), "graph": Execution(cuda_graph=True), "fused": Execution(fused_kernels=True),
    "both": Execution(cuda_graph=True, fused_kernels=True),
}  # fmt: skip


def main() -> None:
    """Print a table for each batch size."""
    arguments = parsed_arguments()
    device = default_device()
    execution = EXECUTIONS[arguments.execution or ("both" if device.type == "cuda" else "eager")]
    base = base_config(arguments.base)
    for rate in (*DROPOUTS, "attention_dropout"):
        if hasattr(base, rate):
            setattr(base, rate, arguments.dropout)
    ceiling = device_flops(device, "auto")
    console = Console(width=120)
    console.print(
        f"torch {torch.__version__}, {device_name(device)}, {format_count(ceiling)}FLOP/s in products of large matrices"
    )
    for chains in arguments.batch:
        shape = {name: getattr(arguments, name) for name in ("base", "window", "bptt_windows", "width")}
        trial = TrialConfig(batch=chains, **shape)
        batch = (text_batch(trial, arguments) if arguments.corpus else random_batch(trial, base.vocab_size)).to(device)
        work = training_flops_per_token(trial, shape_of(base.to_dict()), Plan(trial.bptt_windows))
        stock = stock_lines(base, batch, device, arguments)
        ours = our_lines(trial, base, batch, device, execution, arguments.budget)
        rows = rows_of(chain(stock, ours), arguments, batch, device)
        best = max((row.rate for row in rows if row.title.startswith("stock")), default=math.nan)
        title = f"{trial.base}, {chains} chains of {trial.bptt_windows} windows of {trial.window}"
        heads = ("tokens/s", "slowest, fastest", "of the best stock", "utilisation", "peak memory", "first step")
        table = Table(title, *heads, box=None)
        for row in rows:
            spread = f"{format_count(min(row.rates))}, {format_count(max(row.rates))}"
            share, used = f"{row.rate / best:.2f} x", f"{row.rate * work / ceiling:.0%}"
            table.add_row(
                row.title, format_count(row.rate), spread, share, used, format_size(row.peak), f"{row.first:.1f} s"
            )
        console.print(table)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    add_shape(parser)
    parser.add_argument("--corpus", help="text to train on, as `recur-tune data list` names them")
    parser.add_argument("--tokenizer", default="gpt2", help="for that: a folder, a name on the Hub, or bytes")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument(
        "--micro-batch",
        type=int,
        nargs="+",
        default=[],
        help="windows at a time of the compiled stock model, each a line",
    )
    parser.add_argument("--budget", nargs="+", default=["40MiB"], help="memory budgets, each a line under `auto`")
    parser.add_argument("--execution", choices=EXECUTIONS, help="default: the fastest on this device")
    parser.add_argument(
        "--stock",
        choices=["all", "best", "eager", "none"],
        default="all",
        help="lines of the stock model: 'best' is compiled with its loss, at the sizes of --micro-batch",
    )
    parser.add_argument("--width", type=int, default=TrialConfig().width, help="of the recurrence's network")
    return parser.parse_args()


def add_shape(parser: argparse.ArgumentParser, steps: int = 10) -> None:
    """The options that `mechanisms.py` has too."""
    parser.add_argument("--base", default="tiny", help="a preset or a published shape; weights are random")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--bptt-windows", type=int, default=8)
    parser.add_argument(
        "--steps", type=int, default=steps, help="timed steps in a round, after four that are not timed"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often these are timed")


@dataclass(frozen=True)
class Line:
    """One way to make a step."""

    title: str
    step: Callable[[], object]
    held: Callable[[MemoryTracker], None]  # tells the tracker what is there before the step


@dataclass(frozen=True)
class Row:
    """Its measurements."""

    title: str
    rates: list[float]  # tokens per second, of every round
    peak: int
    first: float  # seconds of the first step, compilation included

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # summed over a micro-batch's windows and their targets


def stock_lines(
    base: PretrainedConfig, batch: WindowBatch, device: torch.device, arguments: argparse.Namespace
) -> Iterator[Line]:
    """Hugging Face's model, trained in every way that needs no recurrence.

    One at a time is in memory.
    """
    chains, windows = batch.inputs_WBT.shape[1], batch.inputs_WBT[..., 0].numel()
    wanted, sizes = arguments.stock, [size for size in arguments.micro_batch if size <= windows]
    ways: list[tuple[str, Callable[[PreTrainedModel], Loss], int]] = []
    if wanted in ("all", "eager"):
        ways += [("eager", eager, chains)]
    if wanted == "all":
        ways += [("compiled", compiled, chains), ("compiled with its loss", compiled_with_loss, chains)]
    if wanted in ("all", "best"):
        ways += [("compiled with its loss", compiled_with_loss, size) for size in sizes if size != chains]
    if wanted == "all" and find_spec("liger_kernel"):
        ways += [("compiled, Liger's fused head", compiled_with_liger, size) for size in sizes]
    for title, way, size in ways:
        model = AutoModelForCausalLM.from_config(base, dtype=torch.float32).to(device).train()
        optimizer = make_optimizer(model, 1e-4, 0.0)
        loss = way(model)
        yield Line(
            f"stock, {title}, {size} windows at a time",
            lambda loss=loss, optimizer=optimizer, size=size: stock_step(loss, optimizer, batch, size),
            lambda tracker, model=model, optimizer=optimizer: tracker.hold_training(model, optimizer, batch),
        )
        del model, loss, optimizer
        forget(device)


def eager(model: PreTrainedModel) -> Loss:
    """Operation by operation."""
    return lambda inputs, targets: summed_loss(model(inputs, use_cache=False).logits, targets)


def compiled(model: PreTrainedModel) -> Loss:
    """The model is compiled, and its loss is not."""
    run = torch.compile(model)
    return lambda inputs, targets: summed_loss(run(inputs, use_cache=False).logits, targets)


def compiled_with_loss(model: PreTrainedModel) -> Loss:
    """Model and loss are compiled together, so that all logits are never held in single precision."""
    return torch.compile(eager(model), dynamic=False)


def compiled_with_liger(model: PreTrainedModel) -> Loss:
    """The blocks are compiled; vocabulary projection and loss are Liger's, a chunk of rows at a time."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    run, head = torch.compile(model.base_model, dynamic=False), LigerFusedLinearCrossEntropyLoss(reduction="sum")

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        top = run(inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        kind = torch.get_autocast_dtype(top.device.type)
        return head(model.lm_head.weight.to(kind), top.to(kind), targets.flatten())

    return loss


def summed_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def our_lines(
    trial: TrialConfig,
    base: PretrainedConfig,
    batch: WindowBatch,
    device: torch.device,
    execution: Execution,
    budgets: list[str],
) -> Iterator[Line]:
    """Ours: all windows recomputed, and as many kept as each budget allows."""
    ways: list[dict[str, Any]] = [{"checkpointing": "all"}]
    ways += [{"checkpointing": "auto", "memory_budget": budget} for budget in budgets]
    for way in ways:
        config = parse(TrialConfig, trial.model_dump() | way | execution._asdict())
        plan = resolve_plan(config, base)
        allowed = f" {way['memory_budget']}" if "memory_budget" in way else ""
        title = f"ours, {execution}, {config.checkpointing}{allowed} ({plan.kept_windows}/{trial.bptt_windows} kept)"
        yield our_line(title, config, base, plan, batch, device)
        forget(device)


def our_line(
    title: str, config: TrialConfig, base: PretrainedConfig, plan: Plan, batch: WindowBatch, device: torch.device,
    dropout: float | None = None,
) -> Line:  # fmt: skip
    """A training step of ours."""
    model = fresh_model(recurrent_config(base, config.recurrence_spec, dropout)).to(device).train()
    windows = Chain(model, plan, Execution(config.cuda_graph is True, config.fused_kernels is True))
    optimizer = make_optimizer(model, 1e-4, 0.0)
    return Line(
        title,
        lambda: train_step(windows, optimizer, batch, 1.0, "auto"),
        lambda tracker: tracker.hold_training(model, optimizer, batch),
    )


def forget(device: torch.device) -> None:
    """Free a line's model before the next one is made."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def random_batch(trial: TrialConfig, vocabulary: int) -> WindowBatch:
    generator = torch.Generator().manual_seed(0)
    shape = (trial.bptt_windows, trial.batch, trial.window + 1)
    tokens = torch.randint(vocabulary, shape, generator=generator)
    fresh = torch.zeros(shape[:2], dtype=torch.bool)
    fresh[0] = True
    count = trial.bptt_windows * trial.batch * trial.window
    starts = ("all", *["none"] * (trial.bptt_windows - 1))
    return WindowBatch(tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous(), fresh, starts, count, count)


def text_batch(trial: TrialConfig, arguments: argparse.Namespace) -> WindowBatch:
    split = prepare(arguments.corpus, "train", load_tokenizer(arguments.tokenizer))
    return next(TextStream(split, trial.windowing, trial.bptt_windows, trial.batch, seed=0))


def stock_step(loss: Loss, optimizer: torch.optim.Optimizer, batch: WindowBatch, size: int) -> None:
    """A step of micro-batches of so many windows."""
    rows = (batch.inputs_WBT.flatten(0, 1).split(size), batch.targets_WBT.flatten(0, 1).split(size))
    for inputs, targets in zip(*rows, strict=True):
        with autocast(inputs.device, "auto"):
            summed = loss(inputs, targets)
        (summed / batch.scored).backward()
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def rows_of(
    lines: Iterable[Line], arguments: argparse.Namespace, batch: WindowBatch, device: torch.device
) -> list[Row]:
    """Measure the lines: on a GPU one after the other, so that one is in memory; on a CPU in turns."""
    rows, lines = list[Row](), iter(lines)
    while together := list(islice(lines, 1 if device.type == "cuda" else None)):
        firsts = [first_steps(line, device) for line in together]
        rounds = [[rate(line, arguments.steps, batch, device) for line in together] for _ in range(arguments.rounds)]
        for line, (first, peak), *rates in zip(together, firsts, *rounds, strict=True):
            rows.append(Row(line.title, rates, peak, first))
            print(f"{line.title}: {format_count(rows[-1].rate)} tokens/s", file=sys.stderr, flush=True)
        del together, line  # and its model, before the next one's is made
    return rows


def first_steps(line: Line, device: torch.device) -> tuple[float, int]:
    """Seconds of the first step, and peak memory of the next three."""
    started = seconds(device)
    line.step()
    first = seconds(device) - started
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        line.step()
    seconds(device)
    return first, torch.cuda.max_memory_allocated() if device.type == "cuda" else tracked_peak(line)


def rate(line: Line, steps: int, batch: WindowBatch, device: torch.device) -> float:
    """Tokens per second of one round."""
    started = seconds(device)
    for _ in range(steps):
        line.step()
    return steps * batch.scored / (seconds(device) - started)


def tracked_peak(line: Line) -> int:
    with MemoryTracker() as tracker:
        line.held(tracker)
        line.step()
    return tracker.peak


def seconds(device: torch.device) -> float:
    """Wall-clock time after a GPU's queued kernels have ended; on a CPU the CPU time of one thread."""
    if device.type != "cuda":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
