"""Tokens per second and peak memory of a training step: stock Hugging Face and ours, in one run.

    python benchmarks/train_step.py                                  # small sizes, for a CPU
    python benchmarks/train_step.py --base gpt2 --batch 16 64 --window 300 --bptt-windows 20 --budget 16GiB 80GiB
    python benchmarks/train_step.py --base HuggingFaceTB/SmolLM2-135M --batch 16 --window 300 --bptt-windows 20

Every line trains on the same batch, of random tokens or, with --corpus and --tokenizer, of a text's. "stock" is Hugging
Face's own model, no recurrence and no recomputation, its gradients added up over micro-batches: the chains' windows one
after another or, since its windows do not depend on each other, as many at a time as is fastest. "Of the best stock" is
over the fastest of all stock lines. Speeds are the median of several rounds, with the slowest and the fastest. On a
CPU, which others may use too, lines take turns, a round of each at a time, and seconds are those of busy cores.
Utilisation counts a model's own products, whatever a line recomputes, over what the device reaches in a product of
large matrices.
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
from recur_tune.data.batches import TrainingStream, WindowBatch
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.data.tokens import prepare
from recur_tune.models.pretrained import base_config, fresh_model, recurrent_config
from recur_tune.ops.device import autocast, default_device

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
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    ceiling = device_flops(device, "auto")
    console = Console(width=120)
    console.print(f"torch {torch.__version__}, {name}, {format_count(ceiling)}FLOP/s in products of large matrices")
    for lanes in arguments.batch:
        trial = TrialConfig(
            base=arguments.base,
            batch=lanes,
            window=arguments.window,
            bptt_windows=arguments.bptt_windows,
            width=arguments.width,
        )
        batch = (text_batch(trial, arguments) if arguments.corpus else random_batch(trial, base.vocab_size)).to(device)
        work = training_flops_per_token(trial, shape_of(base.to_dict()), Plan(trial.bptt_windows))
        stock = stock_lines(base, batch, device, arguments)
        ours = our_lines(trial, base, batch, device, execution, arguments.budget)
        rows = rows_of(chain(stock, ours), arguments, batch, device)
        best = max((row.rate for row in rows if row.title.startswith("stock")), default=math.nan)
        title = f"{trial.base}, {lanes} chains of {trial.bptt_windows} windows of {trial.window}"
        table = Table(
            title,
            "tokens/s",
            "slowest, fastest",
            "of the best stock",
            "utilisation",
            "peak memory",
            "first step",
            box=None,
        )
        for row in rows:
            spread = f"{format_count(min(row.rates))}, {format_count(max(row.rates))}"
            share, used = f"{row.rate / best:.2f} x", f"{row.rate * work / ceiling:.0%}"
            table.add_row(
                row.title, format_count(row.rate), spread, share, used, format_size(row.peak), f"{row.first:.1f} s"
            )
        console.print(table)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="tiny", help="a preset or a published shape; weights are random")
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--bptt-windows", type=int, default=8)
    parser.add_argument("--corpus", help="text to train on, as `recur-tune data list` names them")
    parser.add_argument("--tokenizer", default="gpt2", help="for that: a folder, a name on the Hub, or bytes")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=10, help="timed steps in a round, after four that are not timed")
    parser.add_argument("--rounds", type=int, default=3, help="how often these are timed")
    parser.add_argument(
        "--micro-batch",
        type=int,
        nargs="+",
        default=[],
        help="windows at a time of the compiled stock model, each a line",
    )
    parser.add_argument("--budget", nargs="+", default=["40MiB"], help="memory budgets, each a line under `auto`")
    parser.add_argument("--execution", choices=EXECUTIONS, help="default: the fastest of the device")
    parser.add_argument(
        "--stock",
        choices=["all", "best", "eager", "none"],
        default="all",
        help="lines of the stock model: 'best' is compiled with its loss, at the sizes of --micro-batch",
    )
    parser.add_argument("--width", type=int, default=TrialConfig().width, help="of the recurrence's network")
    return parser.parse_args()


@dataclass(frozen=True)
class Line:
    """One way to make a step."""

    title: str
    step: Callable[[], object]
    held: Callable[[MemoryTracker], None]  # tells the tracker what is there before the step


@dataclass(frozen=True)
class Row:
    """What was measured of it."""

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
    """Hugging Face's model in all the ways in which somebody without a recurrence would train it.

    They are made one after the other, so that only one is in memory.
    """
    lanes, windows = batch.inputs_WBT.shape[1], batch.inputs_WBT[..., 0].numel()
    wanted, sizes = arguments.stock, [size for size in arguments.micro_batch if size <= windows]
    ways: list[tuple[str, Callable[[PreTrainedModel], Loss], int]] = []
    if wanted in ("all", "eager"):
        ways += [("eager", eager, lanes)]
    if wanted == "all":
        ways += [("compiled", compiled, lanes), ("compiled with its loss", compiled_with_loss, lanes)]
    if wanted in ("all", "best"):
        ways += [("compiled with its loss", compiled_with_loss, size) for size in sizes if size != lanes]
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
    """The model is one program; its loss is none of it."""
    run = torch.compile(model)
    return lambda inputs, targets: summed_loss(run(inputs, use_cache=False).logits, targets)


def compiled_with_loss(model: PreTrainedModel) -> Loss:
    """The model and its loss are one program, in which nobody needs the logits in single precision as a whole."""
    return torch.compile(eager(model), dynamic=False)


def compiled_with_liger(model: PreTrainedModel) -> Loss:
    """The blocks are one program; vocabulary projection and loss are Liger's, a chunk of rows at a time."""
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
    """Ours: everything recomputed, and as much kept as each budget allows."""
    ways: list[dict[str, Any]] = [{"checkpointing": "all"}]
    ways += [{"checkpointing": "auto", "memory_budget": budget} for budget in budgets]
    for way in ways:
        config = parse(TrialConfig, trial.model_dump() | way | execution._asdict())
        plan = resolve_plan(config, base)
        ours = fresh_model(recurrent_config(base, config.recurrence_spec, None)).to(device).train()
        windows = Chain(ours, plan, execution)
        optimizer = make_optimizer(ours, 1e-4, 0.0)
        allowed = f" {way['memory_budget']}" if "memory_budget" in way else ""
        yield Line(
            f"ours, {execution}, {config.checkpointing}{allowed} ({plan.kept_windows}/{trial.bptt_windows} kept)",
            lambda windows=windows, optimizer=optimizer: train_step(windows, optimizer, batch, 1.0, "auto"),
            lambda tracker, ours=ours, optimizer=optimizer: tracker.hold_training(ours, optimizer, batch),
        )
        del ours, windows, optimizer
        forget(device)


def forget(device: torch.device) -> None:
    """A line's model is gone before the next one's is made."""
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
    return next(TrainingStream(split, trial.windowing, trial.bptt_windows, trial.batch, seed=0))


def stock_step(loss: Loss, optimizer: torch.optim.Optimizer, batch: WindowBatch, size: int) -> None:
    """Micro-batches of so many windows; those of a chain side by side are rows of the batch as it lies."""
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
    """On a GPU one line at a time, so that only one is in memory; on a CPU they take turns."""
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
    """Seconds of the first, and the peak of the next three."""
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
    """By the clock, when a GPU has done what it was given; a CPU's are of one of its threads."""
    if device.type != "cuda":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
