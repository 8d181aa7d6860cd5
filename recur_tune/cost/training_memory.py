"""Peak memory of a training step, predicted by a step on fake tensors: shapes and lifetimes, no data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from transformers import PretrainedConfig

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.optimizer import AdamW, make_optimizer
from recur_tune.bptt.plan import Execution, Plan, chosen_execution, fixed_plan
from recur_tune.bptt.step import train_step
from recur_tune.bptt.trained import trained_of
from recur_tune.common.errors import UserError
from recur_tune.common.precision import Precision
from recur_tune.common.shape import shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import simulated_batch, state_floats
from recur_tune.cost.fake_tensors import FakeTensors
from recur_tune.cost.inference_memory import state_bytes
from recur_tune.data.batches import WindowBatch
from recur_tune.models.pretrained import described_model, recurrent_config
from recur_tune.models.trained import Trained, lay_frozen_together
from recur_tune.ops.device import default_device, uses_bfloat16
from recur_tune.ops.triton.launches import without_launches

_SIMULATED_WINDOWS = 4  # a longer chain is extrapolated from this length,
_SIMULATED_KEPT = 3  # with at most so many kept windows; or from this length, where all are kept
# Bytes beside the tensors of a step on an H200, 110 to 350 MiB in twenty measured steps: torch gives cuBLAS a workspace
# of 32 MiB for each thread and stream that multiplies. Older GPUs have a quarter of it.
_WORKSPACES = 6 * 2**25


def predict_peak_memory(config: TrialConfig, base: PretrainedConfig, chains: int | None = None) -> int:
    """Peak bytes of weights, gradients, optimiser state, batch and activations in a step.

    It is the step that the trial will run, with or without fused kernels. `chains` is one worker's share of the batch;
    the default is all of it.
    """
    return plan_memory(config, base, resolve_plan(config, base, chains), chains or config.batch)


def resolve_plan(config: TrialConfig, base: PretrainedConfig, chains: int | None = None, shards: int = 1) -> Plan:
    """Which windows keep their activations; `auto` keeps as many as fit the budget, each of which saves a
    recomputation."""
    chains = chains or config.batch
    if config.checkpointing != "auto":
        return fixed_plan(config.checkpointing, config.bptt_windows)
    assert config.memory_budget is not None
    low, high = 0, config.bptt_windows
    while low < high:  # the largest number of kept windows that fits; 0 when not even one does
        kept = (low + high + 1) // 2
        if plan_memory(config, base, Plan(kept), chains, shards) <= config.memory_budget:
            low = kept
        else:
            high = kept - 1
    if not low:
        least = plan_memory(config, base, fixed_plan("all", config.bptt_windows), chains, shards)
        raise UserError(
            f"memory_budget: {config.memory_budget} bytes are less than the {least} that a step needs with all windows "
            "recomputed; allow more, or choose a smaller batch or window."
        )
    return Plan(low)


def plan_memory(config: TrialConfig, base: PretrainedConfig, plan: Plan, chains: int, shards: int = 1) -> int:
    """The predicted peak under a plan, where so many workers share the optimizer's state."""
    peak, moments = _peak_and_moments(config, base, plan, chains)
    return peak - (moments - -(-moments // shards))


def _peak_and_moments(config: TrialConfig, base: PretrainedConfig, plan: Plan, chains: int) -> tuple[int, int]:
    """The predicted peak, and the bytes of Adam's moments in it, which are there all the time."""
    device = default_device()
    described = recurrent_config(base, config.recurrence_spec, config.dropout)
    overlap = config.windowing.in_patches(described.shape.patch).overlap
    described.overlap = overlap if config.mechanism and config.mechanism.leaves_overlap_out else 0
    if device.type == "cuda":
        _without_attention_dropout(described)
    shape = described.to_json_string(use_diff=False)
    precision: Precision = "bfloat16" if uses_bfloat16(device, config.precision) else "float32"
    execution = chosen_execution(config, described.shape.parameters, device)
    trained = trained_of(config, device)
    top = config.teacher.top if config.teacher else 0

    def simulated(windows: int, kept: int) -> _Simulation:
        return _simulate(
            shape,
            config.window,
            windows,
            chains,
            precision,
            Plan(kept),
            device.type == "cuda",
            trained,
            execution,
            top,
        )

    separate = config.has_separate_windows
    windows, kept = config.bptt_windows, 1 if separate else plan.kept_windows
    keeps_all = kept == windows > _SIMULATED_KEPT and not separate
    if windows <= _SIMULATED_WINDOWS and not keeps_all:
        whole = simulated(windows, kept)
        return whole.peak, whole.moments
    # Each further window adds the same bytes: its tokens, and its activations if it is kept, else its state, which
    # waits for the backward pass. The first kept window adds none, since recomputing takes as much.
    if separate:  # nothing is kept, and no state waits
        short = simulated(_SIMULATED_WINDOWS, 1)
        return short.peak + (windows - _SIMULATED_WINDOWS) * short.tokens, short.moments
    if keeps_all:
        short = simulated(_SIMULATED_KEPT, _SIMULATED_KEPT)
        return short.peak + (windows - _SIMULATED_KEPT) * (short.tokens + short.activations), short.moments
    short_kept = 1 if kept == 1 else _SIMULATED_KEPT
    short = simulated(_SIMULATED_WINDOWS, short_kept)
    further, further_kept = windows - _SIMULATED_WINDOWS, kept - short_kept
    body = shape_of(base.to_dict())
    waiting = chains * body.columns * state_bytes(config, body, state_floats(config, body, base))
    added = further * short.tokens + further_kept * short.activations + (further - further_kept) * waiting
    return short.peak + added, short.moments


@dataclass(frozen=True)
class _Simulation:
    """Bytes of a simulated step: its peak, the activations of a kept window in its middle, Adam's moments, and a
    window's tokens and targets."""

    peak: int
    activations: int
    moments: int
    tokens: int


@cache
def _simulate(
    shape: str, window: int, windows: int, chains: int, precision: Precision, plan: Plan, on_gpu: bool,
    trained: Trained, execution: Execution, top: int = 0,
) -> _Simulation:  # fmt: skip
    """Only what changes the result is an argument, so that similar trials share it."""
    with FakeTensors(on_gpu), without_launches():
        model = described_model(shape)
        trained.apply(model)
        lay_frozen_together(model)
        if on_gpu:
            _use_fused_dropout(model)
        optimizer = make_optimizer(model, learning_rate=0.0, weight_decay=0.0)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()  # makes the moments, which exist from the second step on
        optimizer.zero_grad(set_to_none=True)
        batch = simulated_batch(windows, chains, window, top, model=model)
        tracker, added = MemoryTracker(), list[int]()

        @contextmanager
        def noted() -> Iterator[None]:
            """Notes the bytes that reading a window leaves behind."""
            before = tracker.live
            yield
            added.append(tracker.live - before)

        # The second step, whose peak is measured, comes before the capture of a CUDA graph.
        chain = Chain(model, plan, execution, capture=False, around_read=noted)
        peak = track_step(tracker, chain, optimizer, batch, precision)
        activations = added[windows - 2] if plan.kept_windows > 2 else 0
        moments = sum(2 * one.numel() * one.element_size() for one in chain.trained)
        tokens = sum(one.numel() * one.element_size() for one in batch.tensors) // windows
        return _Simulation(peak + (_WORKSPACES if on_gpu else 0), activations, moments, tokens)


def track_step(tracker: MemoryTracker, chain: Chain, optimizer: AdamW, batch: WindowBatch, precision: Precision) -> int:
    """Peak of one step, real or fake, of an optimiser that has stepped before."""
    with tracker:
        tracker.hold_training(chain.model, optimizer, batch)
        train_step(chain, optimizer, batch, clip_norm=1.0, precision=precision)
    return tracker.peak


class _FusedDropout(nn.Dropout):
    """Dropout that keeps a mask of one byte per element; on a CPU torch keeps a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x, self.p, True)[0] if self.p else x


def _without_attention_dropout(config: PretrainedConfig) -> None:
    """Set attention dropout to 0: a GPU drops out inside its kernel and keeps no mask, a CPU would keep the full
    square."""
    for name in ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob"):
        if hasattr(config, name):
            setattr(config, name, 0.0)


def _use_fused_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.__class__ = _FusedDropout  # in place: the model's description holds the modules themselves
