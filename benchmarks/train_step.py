"""Tokens per second and peak memory of a training step: stock Hugging Face GPT-2 and ours, in one run.

    python benchmarks/train_step.py                                  # small sizes, for a CPU
    python benchmarks/train_step.py --base gpt2 --batch 16 --window 300 --windows 20 --dropout 0

Every line trains on the same batch of random tokens. "stock" reads one window after another and adds up their
gradients, with Hugging Face's own model, no recurrence and no recomputation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel

from recur_tune.corpus.batches import WindowBatch
from recur_tune.cost.flops import training_flops_per_token
from recur_tune.cost.memory import resolve_plan
from recur_tune.model import RecurrentGPT2
from recur_tune.model.pretrained import base_config, recurrent_config
from recur_tune.spec import TrialConfig
from recur_tune.training.bptt import Chain
from recur_tune.training.memory_tracker import MemoryTracker
from recur_tune.training.precision import autocast
from recur_tune.training.step import make_optimizer, train_step
from recur_tune.units import format_count, format_size


def main() -> None:
    """Print the table."""
    arguments = parsed_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trial = TrialConfig(
        base=arguments.base, batch=arguments.batch, window=arguments.window, windows=arguments.windows,
        memory_budget=arguments.budget,
    )  # fmt: skip
    base = base_config(arguments.base)
    for rate in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(base, rate, arguments.dropout)
    batch = random_batch(trial, base.vocab_size).to(device)

    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console = Console(width=110)
    console.print(
        f"{arguments.base}, {trial.batch} chains of {trial.windows} windows of {trial.window}, "
        f"torch {torch.__version__}, {name}"
    )
    table = Table("step", "tokens/s", "of stock eager", "peak memory", "training FLOPs/token", box=None)
    first: float | None = None
    ways = chain(stock_lines(base, batch, device, arguments.no_compile), our_lines(trial, base, batch, device))
    for line in ways:
        rate = batch.scored / seconds_per_step(line.step, arguments.steps, device)
        first = first or rate
        peak = peak_memory(line.step, line.held, device)
        flops = format_count(line.flops) if line.flops else ""
        table.add_row(line.title, format_count(rate), f"{rate / first:.2f} x", format_size(peak), flops)
    console.print(table)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="tiny", help="a preset or a published shape; weights are random")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after three that are not")
    parser.add_argument("--budget", default="1GiB", help="memory budget of the `auto` line")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled stock model out")
    return parser.parse_args()


@dataclass(frozen=True)
class Line:
    """One way to make a step."""

    title: str
    step: Callable[[], object]
    held: Callable[[MemoryTracker], None]  # tells the tracker what is there before the step
    flops: float | None = None


def stock_lines(base: GPT2Config, batch: WindowBatch, device: torch.device, no_compile: bool) -> Iterator[Line]:
    """Hugging Face's model, eager and compiled; made one after the other, so that only one is in memory."""
    for compiled in (False,) if no_compile else (False, True):
        model = GPT2LMHeadModel(base).to(device).train()
        optimizer = make_optimizer(model, 1e-4, 0.0)
        run = torch.compile(model) if compiled else model
        yield Line(
            f"stock GPT-2, {'compiled' if compiled else 'eager'}",
            lambda run=run, optimizer=optimizer: stock_step(run, optimizer, batch),
            lambda tracker, model=model, optimizer=optimizer: tracker.hold_training(model, optimizer, batch),
        )


def our_lines(trial: TrialConfig, base: GPT2Config, batch: WindowBatch, device: torch.device) -> Iterator[Line]:
    """Ours under every checkpoint policy."""
    for policy in ("all", "auto", "none"):
        config = trial.model_copy(update={"checkpointing": policy})
        ours = RecurrentGPT2(recurrent_config(base, config.memory, None))
        plan = resolve_plan(config, base)
        windows = Chain(ours.to(device).train(), plan)
        optimizer = make_optimizer(windows, 1e-4, 0.0)
        kept = f"{plan.kept_windows}/{trial.windows} kept" + (", head kept" if plan.head_gradients else "")
        yield Line(
            f"ours, {policy} ({kept})",
            lambda windows=windows, optimizer=optimizer: train_step(windows, optimizer, batch, 1.0, "auto"),
            lambda tracker, ours=ours, optimizer=optimizer: tracker.hold_training(ours, optimizer, batch),
            training_flops_per_token(config, base, plan),
        )


def random_batch(trial: TrialConfig, vocabulary: int) -> WindowBatch:
    generator = torch.Generator().manual_seed(0)
    shape = (trial.windows, trial.batch, trial.window + 1)
    tokens = torch.randint(vocabulary, shape, generator=generator)
    fresh = torch.zeros(shape[:2], dtype=torch.bool)
    fresh[0] = True
    count = trial.windows * trial.batch * trial.window
    starts = ("all", *["none"] * (trial.windows - 1))
    return WindowBatch(tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous(), fresh, starts, count, count)


def stock_step(model: Callable[..., Any], optimizer: torch.optim.Optimizer, batch: WindowBatch) -> None:
    for inputs, targets in zip(batch.inputs_WBT, batch.targets_WBT, strict=True):
        with autocast(inputs.device, "auto"):
            logits = model(inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
        (loss / batch.scored).backward()
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def seconds_per_step(step: Callable[[], object], steps: int, device: torch.device) -> float:
    for _ in range(3):
        step()
    wait(device)
    started = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return (time.perf_counter() - started) / steps


def peak_memory(step: Callable[[], object], held: Callable[[MemoryTracker], None], device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated()
    with MemoryTracker() as tracker:
        held(tracker)
        step()
    return tracker.peak


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
