"""On a GPU: a step with CUDA graph, fused kernels or both has the plain step's loss and gradients, for every family.

    python benchmarks/check_gpu.py
    python benchmarks/check_gpu.py --steps tokens cache     # only the steps of these recurrences

The reference is the plain step in float64. An error is relative: the norm of the difference over the norm of the
reference. The first line of each model has the error of the plain step in bfloat16. Five more checks: kernels agree
with their reference operations; a window that is recomputed with dropout has the same gradients; peak memory with
checkpointing `all` does not grow with the number of windows; a chain with a CUDA graph accepts a batch of another
shape; and a released CUDA graph leaves no memory allocated. Each failure is one sentence at the end, and the exit code
is 1. Each check has its own process, because most of the time is spent on compiling kernels.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from train_step import random_batch
from transformers import CONFIG_MAPPING
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Execution, Plan
from recur_tune.common.windowing import NOT_SCORED
from recur_tune.config.trial import TrialConfig
from recur_tune.data.batches import WindowBatch, starts_of
from recur_tune.models import WindowedDecoder
from recur_tune.models.pretrained import fresh_model, recurrent_config
from recur_tune.ops import reference as passes
from recur_tune.ops.device import autocast
from recur_tune.recurrences.registry import DEFAULT, MECHANISMS, NONE

Check = Callable[..., Iterator[str]]  # prints its results for a `device` on a `console`, and yields failures
Passed = tuple[str, list[torch.Tensor]]  # an operation's name, and its results

VOCABULARY = 50257
_GROUPED = {"num_hidden_layers": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
BODIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 4, "n_embd": 256, "n_head": 4},
    # No block of a kernel is full: a head's half has 24 columns, the MLP 800.
    "llama": {**_GROUPED, "hidden_size": 288, "num_attention_heads": 6, "intermediate_size": 800},
    "qwen2": {**_GROUPED, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 768},  # has biases
    "qwen3": {**_GROUPED, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 768, "head_dim": 64},
}
RECURRENCES: dict[str, dict[str, Any]] = {
    "none": {"recurrence": "none"},
    "pooled": {},
    "pooled, all layers": {"l_ins": "all", "embeddings": 2},
    "pooled, recent": {"l_ins": "all", "pooling": "recent", "embeddings": 4, "skip": True},
    "tokens": {"recurrence": "tokens"},
    "cache, gate": {"recurrence": "cache", "cache_join": "gate"},
    "cache, softmax": {"recurrence": "cache"},
    "cache, keydiff": {"recurrence": "cache", "cache_keep": "keydiff"},
    "cache, 4 bits": {"recurrence": "cache", "cache_bits": 4},
    "cache, keydiff, 8 bits, gate": {
        "recurrence": "cache",
        "cache_keep": "keydiff",
        "cache_bits": 8,
        "cache_join": "gate",
    },
    "cache, overflow in every second layer": {"recurrence": "cache", "overflow": "gated_delta", "delta_every": 2},
    "gated_delta": {"recurrence": "gated_delta"},
    "ttt": {"recurrence": "ttt", "ttt_every": 2},
    "fast_weights, delta": {"recurrence": "fast_weights"},
    "fast_weights, gated": {"recurrence": "fast_weights", "write_rule": "gated"},
    "scores": {"recurrence": "scores"},
    "blocks": {"recurrence": "blocks"},
}
_WITH_ALL = ("gpt2", "qwen3")  # families that every mechanism is tried on; qwen3 has all that the others have
_AS_GOOD_AS_PLAIN = 1.5  # times the error of the plain step in bfloat16
_SAME = 1e-2  # of the gradients' size; the order of bfloat16's sums may differ
_ORDER_OF_SUMS = 1e-5  # the same where sums are in single precision
_FLAT = 1.01
_NOTHING_LEFT = 2**20  # bytes; cuBLAS keeps 32 MiB for each stream on a Hopper GPU, 8 on others
EAGER, GRAPH, FUSED = Execution(), Execution(cuda_graph=True), Execution(fused_kernels=True)
BOTH = Execution(cuda_graph=True, fused_kernels=True)
ALL_WAYS: list[tuple[Execution, int]] = [
    (EAGER, 1), (EAGER, 3), (GRAPH, 1), (GRAPH, 6), (FUSED, 1), (FUSED, 6),
    (BOTH, 1), (BOTH, 3), (BOTH, 6),
]  # fmt: skip
WAYS: list[tuple[Execution, int]] = [(EAGER, 1), (BOTH, 1), (BOTH, 6)]


def main() -> None:
    """Print the tables; exit with 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", nargs="+", choices=[*MECHANISMS, NONE], metavar="NAME", help="check only their steps"
    )
    chosen = parser.parse_args().steps
    if not torch.cuda.is_available():
        parser.error("a CUDA device is needed, and torch sees none.")
    checks: list[Check] = [partial(step_faults, family=family, chosen=chosen) for family in BODIES]
    if not chosen:
        checks += [kernel_faults, dropout_faults, memory_faults]
    faults: list[str] = []
    # Spawned: a process that has used CUDA cannot be forked.
    with ProcessPoolExecutor(len(checks), mp_context=get_context("spawn")) as pool:
        for printed, found in pool.map(checked, checks):
            print(printed, end="", flush=True)
            faults += found
    for fault in faults:
        Console(width=110).print(fault, style="bold")
    sys.exit(bool(faults))


def checked(check: Check) -> tuple[str, list[str]]:
    """What a check prints, and its failures."""
    printed = StringIO()
    faults = list(check(console=Console(width=110, file=printed), device=torch.device("cuda")))
    return printed.getvalue(), faults


def step_faults(console: Console, family: str, chosen: list[str] | None, device: torch.device) -> Iterator[str]:
    """Print a family's table; a step whose error is larger than that of plain bfloat16 is a failure."""
    table = Table(family, "way", "kept", "error of the loss", "of the gradients", box=None)
    tried = chosen or ([NONE, *MECHANISMS] if family in _WITH_ALL else [NONE, DEFAULT])
    for name, fields in RECURRENCES.items():
        trial = TrialConfig(window=96, bptt_windows=6, batch=8, **fields)
        if trial.recurrence not in tried:
            continue
        batch = some_fresh(random_batch(trial, VOCABULARY)).to(device)
        model = model_of(trial, family).to(device).train()
        exact = [
            value.double() for value in loss_and_gradients(model.double(), EAGER, trial.bptt_windows, batch, "float32")
        ]
        model.float()
        allowed = 0.0
        for execution, kept in ALL_WAYS if family == "gpt2" and trial.recurrence == DEFAULT else WAYS:
            found = loss_and_gradients(model, execution, kept, batch, "bfloat16")
            loss, gradients = (off(one, other) for one, other in ((found[:1], exact[:1]), (found[1:], exact[1:])))
            allowed = allowed or _AS_GOOD_AS_PLAIN * gradients
            if not gradients <= allowed:  # so that NaN is a fault too
                yield f"{family}, {name}, {execution}, {kept} windows kept: the gradients' error is {gradients:.1e}."
            table.add_row(name, str(execution), str(kept), f"{loss:.1e}", f"{gradients:.1e}")
    console.print(table)


def memory_faults(console: Console, device: torch.device) -> Iterator[str]:
    """Print how much memory is used, and what is wrong with it."""
    other = off_for_another_shape(device)
    console.print(f"a batch of another shape than the captured one: the gradients' error is {other:.1e}")
    if not other <= _SAME:
        yield "A batch of another shape than the captured one has wrong gradients."
    flat = [peak(windows, device) for windows in (2, 20, 100)]
    console.print(
        f"peak memory under 'all' with 2, 20 and 100 windows: {', '.join(f'{one / 2**20:.0f} MiB' for one in flat)}"
    )
    if max(flat) > _FLAT * min(flat):
        yield "Peak memory under 'all' grows with the number of windows."
    left = left_by_graphs(4, device)
    console.print(f"memory that each of four further CUDA graphs leaves allocated: {left / 2**20:.1f} MiB")
    if left > _NOTHING_LEFT:
        yield "A released CUDA graph leaves memory allocated: perhaps each has a cuBLAS workspace of its own."


def off_for_another_shape(device: torch.device) -> float:
    """A chain that captured a batch of eight rows gets one of four, as at the end of an epoch."""
    trial = TrialConfig(window=96, bptt_windows=6, batch=8)
    batch = random_batch(trial, VOCABULARY).to(device)
    half = replace(
        batch, inputs_WBT=batch.inputs_WBT[:, :4].contiguous(), targets_WBT=batch.targets_WBT[:, :4].contiguous(),
        fresh_WB=batch.fresh_WB[:, :4].contiguous(),
    )  # fmt: skip
    model = model_of(trial).to(device).train()
    chains = [Chain(model, Plan(trial.bptt_windows), execution) for execution in (EAGER, GRAPH)]
    found = []
    for chain in chains:
        with autocast(device, "bfloat16"):
            for _ in range(4):
                chain.differentiate(batch)
            found.append([gradient.double() for gradient in chain.differentiate(half).gradients])
    return off(found[1], found[0])


def model_of(trial: TrialConfig, family: str = "gpt2", dropout: float = 0.0) -> WindowedDecoder:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**BODIES[family], vocab_size=VOCABULARY)
    return fresh_model(recurrent_config(config, trial.recurrence_spec, dropout))


def some_fresh(batch: WindowBatch) -> WindowBatch:
    """Some rows begin a document in the middle."""
    fresh = batch.fresh_WB.clone()
    fresh[3, ::3] = True
    starts = starts_of(fresh.numpy())
    return WindowBatch(batch.inputs_WBT, batch.targets_WBT, fresh, starts, batch.scored, batch.step_scored)


def loss_and_gradients(
    model: WindowedDecoder, execution: Execution, kept: int, batch: WindowBatch, precision: str, steps: int = 4
) -> list[torch.Tensor]:
    """Of the last of several steps without an update: a CUDA graph was captured on another batch, and is replayed."""
    chain = Chain(model, Plan(kept), execution)
    for step in range(steps if execution.cuda_graph else 1, 0, -1):
        current = batch if step == 1 else another(batch)
        torch.manual_seed(1)
        with autocast(batch.inputs_WBT.device, precision):  # type: ignore[arg-type]
            found = chain.differentiate(current)
    return [found.loss.clone(), *(gradient.clone() for gradient in found.gradients)]


def another(batch: WindowBatch) -> WindowBatch:
    """Other tokens, and documents that begin elsewhere."""
    fresh = batch.fresh_WB.clone()
    fresh[1:] = False
    fresh[4] = True
    starts = ("all", "none", "none", "none", "all", "none")
    return replace(batch, inputs_WBT=batch.inputs_WBT.flip(0), fresh_WB=fresh, starts=starts)


def off(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    distance = sum(float((one.double() - other).square().sum()) for one, other in zip(found, exact, strict=True))
    return (distance / sum(float(other.square().sum()) for other in exact)) ** 0.5


def dropout_faults(console: Console, device: torch.device) -> Iterator[str]:
    """With dropout a recomputed window has the gradients of one that was kept."""
    trial = TrialConfig(window=96, bptt_windows=6, batch=8)
    batch = random_batch(trial, VOCABULARY).to(device)
    ways: tuple[Execution, ...] = (EAGER, FUSED, BOTH)
    for family, execution in product(("gpt2", "llama"), ways):
        model = model_of(trial, family, dropout=0.1).to(device).train()
        kept, again = (loss_and_gradients(model, execution, windows, batch, "bfloat16") for windows in (6, 1))
        error = off(again[1:], [value.double() for value in kept[1:]])
        console.print(
            f"{family}, dropout 0.1, {execution}: recomputed against kept, the gradients' error is {error:.1e}"
        )
        if not error <= _ORDER_OF_SUMS:
            yield f"With dropout, a recomputed {execution} window of {family} has other gradients than a kept one."


def kernel_faults(console: Console, device: torch.device) -> Iterator[str]:
    """Each kernel against its reference operations, at hidden sizes that fill its blocks and at others."""
    from recur_tune.ops.triton import pointwise as kernels  # needs Triton

    for hidden in (256, 576, 768, 1600):
        ours, theirs = (dict(passed(module, Given(hidden, device))) for module in (kernels, passes))
        errors = {name: off(one, [value.double() for value in theirs[name]]) for name, one in ours.items()}
        console.print(f"kernels at {hidden}: " + ", ".join(f"{name} {error:.0e}" for name, error in errors.items()))
        yield from (
            f"The kernel {name} differs from its reference operations at a hidden size of {hidden}."
            for name, error in errors.items()
            if not error <= _SAME
        )


@dataclass(frozen=True)
class Given:
    """What operations are given: random numbers at a hidden size."""

    hidden: int
    device: torch.device
    batch: int = 5
    positions: int = 77

    def some(self, columns: int, kind: torch.dtype = torch.bfloat16, rows: int = 0) -> torch.Tensor:
        return torch.randn(self.batch, rows or self.positions, columns, device=self.device).to(kind)

    def ones(self, columns: int) -> torch.Tensor:
        """A sum to add to."""
        return torch.ones(columns, device=self.device)


def passed(module: Any, given: Given) -> Iterator[Passed]:
    """The results of each operation on the same random numbers, with the sums that it adds to."""
    for operations in (of_norms, of_activations, of_heads, of_extra_rows, of_the_loss):
        torch.manual_seed(0)
        yield from operations(module, given)


def of_norms(module: Any, given: Given) -> Iterator[Passed]:
    hidden, low = given.hidden, torch.bfloat16
    x, grad_x, added = given.some(hidden, torch.float32), given.some(hidden, torch.float32), given.some(hidden)
    for title, norm in (("add_norm", torch.nn.LayerNorm(hidden)), ("add_norm, RMS", LlamaRMSNorm(hidden))):
        norm.to(given.device).requires_grad_(False)
        for vector in norm.parameters():
            vector.normal_()
        for means in (1, 4):
            grad_means = given.some(hidden, torch.float32, rows=means)
            total, normed, mean, moments = module.add_norm(x, added, norm, low, means)
            yield f"{title}, means of {means}", [total, normed, mean, moments.flatten()]
            totals = given.ones(hidden), given.ones(hidden), given.ones(hidden)
            made = module.add_norm_backward(added, grad_x, grad_means, total, moments, norm, low, low, totals)
            yield f"{title}, means of {means}, backward", [*made, *totals]
    means = module.stretch_means(x, 5), module.stretch_means_backward(given.some(hidden, rows=5), given.positions)
    yield "means", [*means]


def of_activations(module: Any, given: Given) -> Iterator[Passed]:
    wide, total = 4 * given.hidden, given.ones(given.hidden)
    module.add_columns(given.some(given.hidden), total)
    yield "add_columns", [total]
    x, total = given.some(wide), given.ones(wide)
    yield "gelu", [module.gelu(x)]
    yield "gelu, backward", [*module.gelu_backward(x, given.some(wide), total), total]
    x, total = given.some(wide), given.ones(wide)
    yield "swiglu", [module.swiglu(x)]
    yield "swiglu, backward", [*module.swiglu_backward(x, given.some(wide // 2), total), total]


def of_heads(module: Any, given: Given) -> Iterator[Passed]:
    hidden, size = given.hidden, 64
    total = given.ones(3 * hidden)
    yield "join", [module.join((given.some(hidden), given.some(hidden), given.some(hidden)), total), total]
    heads = hidden // size
    groups = -(-heads // 3)
    angle = torch.randn(given.positions, size // 2, device=given.device).repeat(1, 2)
    cos_sin = angle.cos(), angle.sin()
    x = given.some((heads + 2 * groups) * size)
    yield "apply_rotary", [module.apply_rotary(x, *cos_sin, heads + groups)]
    parts, total = tuple(given.some(one * size) for one in (heads, groups, groups)), given.ones(x.shape[-1])
    yield "join, grouped", [module.join(parts, total), total]
    total = given.ones(x.shape[-1])
    yield "join, apply_rotary back", [module.join(parts, total, cos_sin), total]


def of_extra_rows(module: Any, given: Given) -> Iterator[Passed]:
    """Rows before the window's own: a state's, or those of a cache."""
    hidden, positions, device = given.hidden, given.positions, given.device
    x, down = given.some(hidden, torch.float32), torch.tensor([0, 2, 0, 1, 2], device=device)
    yield "move", [module.move(x, down, positions + 2), module.move(x, -down, positions - 2)]
    extra, own = given.some(2 * hidden, rows=3), given.some(3 * hidden)
    places = given.some(2 * hidden, torch.float32, rows=3)[0]
    for title, seen in (("packed", None), ("packed, by row", torch.tensor([0, 3, 1, 2, 3], device=device))):
        packed, total = module.pack(extra, own, seen, places), given.ones(3 * hidden)
        yield f"{title}, unplaced", [module.pack(extra, own, seen, None)]
        parts = packed.chunk(3, dim=-1)
        joined = module.join(parts, total, down=3 if seen is None else seen, rows=positions)
        of_extra, of_places = (
            module.grad_extra(parts[1:], 3, seen),
            module.grad_places(parts[1:], 3, seen, torch.float32),
        )
        yield title, [packed, joined, total, of_extra, of_places]


def of_the_loss(module: Any, given: Given) -> Iterator[Passed]:
    logits = torch.randn(300, 50304, device=given.device).to(torch.bfloat16)
    target = torch.randint(50257, (300,), device=given.device)
    target[::7] = NOT_SCORED
    yield "cross_entropy", [module.cross_entropy(logits, target, 50257), logits]


def peak(windows: int, device: torch.device) -> int:
    gc.collect()  # a chain is in a reference cycle: an earlier one's weights would count
    trial = TrialConfig(window=96, bptt_windows=windows, batch=8)
    batch = random_batch(trial, VOCABULARY).to(device)
    model = model_of(trial).to(device).train()
    chain = Chain(model, Plan(1), EAGER)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        with autocast(device, "bfloat16"):
            chain.differentiate(batch)
    return torch.cuda.max_memory_allocated()


def left_by_graphs(times: int, device: torch.device) -> float:
    """Bytes that a CUDA graph leaves allocated in this process when nothing refers to it any more."""
    trial = TrialConfig(window=96, bptt_windows=6, batch=8)
    batch = random_batch(trial, VOCABULARY).to(device)
    model = model_of(trial).to(device).train()
    held = []
    for _ in range(1 + times):  # the first allocates what all of them use
        loss_and_gradients(model, GRAPH, trial.bptt_windows, batch, "bfloat16")
        gc.collect()
        held.append(torch.cuda.memory_allocated())
    return (held[-1] - held[0]) / times


if __name__ == "__main__":
    main()
