"""A training step of several workers: one alone, one in a process group, two on one device, and more on paper.

    python benchmarks/several_workers.py                                   # small sizes, for a CPU
    python benchmarks/several_workers.py --base gpt2 --batch 16 --window 300 --bptt-windows 20
    python benchmarks/several_workers.py --base HuggingFaceTB/SmolLM2-135M --batch 16 --window 300 --bptt-windows 20

A worker in a process group of one does everything that one of many does: its step is recorded as a CUDA graph, and the
buffer of its gradients goes through NCCL. Alone and in the group take turns, a round each at a time. Two processes on
one device share its cores, so their speed tells nothing; they show that their losses are those of one process.

The scaling behind it is arithmetic, not measured: the measured step of one worker with its share of the chains, plus
the bytes of the exchange over the bandwidth of the link. Nothing of the exchange overlaps with the step.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from train_step import forget, random_batch, seconds

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.optimizer import AdamW, make_optimizer
from recur_tune.bptt.plan import Execution, fixed_plan
from recur_tune.bptt.step import train_step
from recur_tune.common.shape import shape_of
from recur_tune.common.units import format_count, format_seconds, format_size
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.communication import LINKS, exchange_seconds, exchanged_bytes
from recur_tune.data.batches import WindowBatch
from recur_tune.models.pretrained import base_config, fresh_model, recurrent_config
from recur_tune.ops.device import default_device

WARM_UP = 4  # steps; kernels are compiled and the graph is captured
COMPARED = 8  # steps whose losses are compared
COUNTS = (2, 4, 8)
SEVERAL_RANKS_A_GPU = (2, 30)  # NCCL's version that knows NCCL_MULTI_RANK_GPU_ENABLE


@dataclass
class Worker:
    """A worker's model, ready to make steps on its share of a batch."""

    chain: Chain
    optimizer: AdamW
    batch: WindowBatch

    def step(self) -> torch.Tensor:
        return train_step(self.chain, self.optimizer, self.batch, 1.0, "auto")[0]


def main() -> None:
    """Print the tables."""
    arguments = parsed_arguments()
    device, console = default_device(), Console(width=120)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console.print(f"torch {torch.__version__}, {name}{_nccl(device)}")
    trial = trial_of(arguments)
    print_one_and_one_of_a_group(trial, arguments, device, console)
    print_two_on_one_device(trial, device, console)
    print_scaling(trial, arguments, device, console)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="tiny", help="a preset or a published shape; weights are random")
    parser.add_argument("--batch", type=int, default=8, help="chains")
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--bptt-windows", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="timed steps in a round")
    parser.add_argument("--rounds", type=int, default=3, help="how often these are timed")
    return parser.parse_args()


def trial_of(arguments: argparse.Namespace) -> TrialConfig:
    names = ("base", "batch", "window", "bptt_windows")
    return TrialConfig(**{name: getattr(arguments, name) for name in names}, checkpointing="all")


def worker_of(trial: TrialConfig, device: torch.device, shard: bool = False, rank: int = 0, workers: int = 1) -> Worker:
    """Everything recomputed, and launched in the fastest way of the device."""
    torch.manual_seed(0)
    base = base_config(trial.base)
    model = fresh_model(recurrent_config(base, trial.recurrence_spec, 0.0)).to(device).train()
    fast = device.type == "cuda"
    execution = Execution(cuda_graph=fast, fused_kernels=fast)
    optimizer = make_optimizer(model, 1e-4, 0.0, shard=shard)
    chain = Chain(model, fixed_plan("all", trial.bptt_windows), execution, optimizer.shards)
    whole = random_batch(trial, base.vocab_size)
    mine = slice(rank * trial.batch // workers, (rank + 1) * trial.batch // workers)
    share = replace(
        whole, inputs_WBT=whole.inputs_WBT[:, mine].contiguous(), targets_WBT=whole.targets_WBT[:, mine].contiguous(),
        fresh_WB=whole.fresh_WB[:, mine].contiguous(),
    )  # fmt: skip
    return Worker(chain, optimizer, share.to(device))


@contextmanager
def process_group(backend: str, rank: int = 0, workers: int = 1, store: str = "") -> Iterator[None]:
    """A process group for as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        method = f"file://{store or folder}/store"
        dist.init_process_group(backend, method, timedelta(minutes=5), workers, rank)
        try:
            yield
        finally:
            dist.destroy_process_group()


def print_one_and_one_of_a_group(
    trial: TrialConfig, arguments: argparse.Namespace, device: torch.device, console: Console
) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    alone = worker_of(trial, device)
    with process_group(backend):
        grouped, sharded = worker_of(trial, device), worker_of(trial, device, shard=True)
    ways = {"one worker alone": (alone, False), f"one of a {backend} group": (grouped, True),
            "the same, optimizer sharded": (sharded, True)}  # fmt: skip
    rates: dict[str, list[float]] = {title: [] for title in ways}
    for round_ in range(arguments.rounds + 1):
        for title, (worker, in_group) in ways.items():
            if in_group:
                with process_group(backend):
                    found = rate(worker, arguments.steps if round_ else WARM_UP, device)
            else:
                found = rate(worker, arguments.steps if round_ else WARM_UP, device)
            if round_:
                rates[title].append(found)
    table = Table(titled(trial), "tokens/s", "slowest, fastest", "of one alone", box=None)
    usual = median(rates["one worker alone"])
    for title, found in rates.items():
        spread = f"{format_count(min(found))}, {format_count(max(found))}"
        table.add_row(title, format_count(median(found)), spread, f"{median(found) / usual:.3f} x")
    console.print(table)
    del alone, grouped, sharded, ways, worker
    forget(device)


def rate(worker: Worker, steps: int, device: torch.device) -> float:
    """Tokens per second of some steps, the first one left out: in a group it makes the connection."""
    worker.step()
    started = seconds(device)
    for _ in range(steps):
        worker.step()
    return steps * worker.batch.scored / (seconds(device) - started)


def print_two_on_one_device(trial: TrialConfig, device: torch.device, console: Console) -> None:
    one = worker_of(trial, device)
    alone = [float(one.step()) for _ in range(COMPARED)]
    del one
    forget(device)
    ways = {"gloo": {}}
    if device.type == "cuda" and torch.cuda.nccl.version() >= SEVERAL_RANKS_A_GPU:
        ways["nccl"] = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    for backend, environment in ways.items():
        for shard in (False, True) if backend == "nccl" or device.type == "cpu" else (False,):
            found = losses_of_two(trial, device, backend, environment, shard)
            off = max(abs(one - other) / other for one, other in zip(found, alone, strict=True))
            way = f"two processes on one device, {backend}{', optimizer sharded' if shard else ''}"
            console.print(f"{way}: losses of {COMPARED} steps are those of one process within {off:.1e}")


def losses_of_two(
    trial: TrialConfig, device: torch.device, backend: str, environment: dict[str, str], shard: bool
) -> list[float]:
    context = mp.get_context("spawn")
    losses: SimpleQueue[list[float]] = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as store:
        os.environ.update(environment)
        arguments = (trial, device.type, backend, store, shard, losses)
        mp.start_processes(_one_of_two, args=arguments, nprocs=2, start_method="spawn")
    return losses.get()


def _one_of_two(
    rank: int, trial: TrialConfig, device: str, backend: str, store: str, shard: bool, losses: SimpleQueue[list[float]]
) -> None:
    with process_group(backend, rank, 2, store):
        worker = worker_of(trial, torch.device(device), shard, rank, 2)
        found = [float(worker.step()) for _ in range(COMPARED)]
    if rank == 0:
        losses.put(found)


def print_scaling(trial: TrialConfig, arguments: argparse.Namespace, device: torch.device, console: Console) -> None:
    """The same chains shared by more workers, and as many chains for each."""
    shape = shape_of(base_config(trial.base).to_dict())
    step_seconds: dict[int, float] = {}
    for chains in sorted({trial.batch // workers for workers in (1, *COUNTS) if trial.batch % workers == 0}):
        worker = worker_of(trial.model_copy(update={"batch": chains}), device)
        rate(worker, WARM_UP, device)
        speed = median(rate(worker, arguments.steps, device) for _ in range(arguments.rounds))
        step_seconds[chains] = worker.batch.scored / speed
        del worker
        forget(device)
    usual = step_seconds[trial.batch]
    table = Table(
        "on paper: workers, link", "sent by each", "takes", f"{trial.batch} chains shared",
        f"{trial.batch} chains each", box=None,
    )  # fmt: skip
    for workers in COUNTS:
        sent = exchanged_bytes(trial, shape, workers)
        for link, bandwidth in LINKS.items():
            takes = exchange_seconds(sent, bandwidth)
            shared = step_seconds.get(trial.batch // workers if trial.batch % workers == 0 else 0)
            strong = f"{usual / (shared + takes):.2f} x" if shared else "-"
            table.add_row(
                f"{workers}, {link}", format_size(sent), format_seconds(takes), strong,
                f"{workers * usual / (usual + takes):.2f} x",
            )  # fmt: skip
    console.print(
        f"a step of one worker: {', '.join(f'{n} chains {format_seconds(t)}' for n, t in step_seconds.items())}"
    )
    console.print(table)


def titled(trial: TrialConfig) -> str:
    return f"{Path(trial.base).name}, {trial.batch} chains of {trial.bptt_windows} windows of {trial.window}"


def _nccl(device: torch.device) -> str:
    return f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if device.type == "cuda" else ""


if __name__ == "__main__":
    main()
