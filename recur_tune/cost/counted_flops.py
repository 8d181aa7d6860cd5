"""FLOPs without a closed form, counted by torch on fake tensors: of a recurrence, of a step with a frozen body."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from transformers import PretrainedConfig

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Plan
from recur_tune.common.shape import Shape
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.fake_tensors import FakeTensors
from recur_tune.cost.flop_counter import FlopCounter
from recur_tune.cost.flops import is_closed, training_flops_per_token
from recur_tune.cost.inference_memory import closed_state_floats
from recur_tune.data.batches import WindowBatch
from recur_tune.data.teacher import TeacherRows
from recur_tune.models import State, Windowed
from recur_tune.models.pretrained import described_model, recurrent_config
from recur_tune.models.trained import Trained
from recur_tune.recurrences.registry import Work

_SIMULATED = 4  # windows of the longest step that is simulated


class Counted(NamedTuple):
    """A recurrence's forward FLOPs in one window, and the numbers in one stream's state."""

    work: Work
    state_floats: int


def counted(config: TrialConfig, base: PretrainedConfig) -> Counted:
    """Count a trial's recurrence on a base of this shape."""
    return _counted(_described(config, base), config.window)


def _described(config: TrialConfig, base: PretrainedConfig) -> str:
    """A trial's model as JSON: enough to simulate it without weights, and the key of the cache."""
    whole = recurrent_config(base, config.recurrence_spec, None)
    whole.overlap = config.windowing.in_patches(whole.shape.patch).overlap
    return whole.to_json_string(use_diff=False)


@cache
def _counted(shape: str, window: int) -> Counted:
    """Only what changes the result is an argument, so that similar trials share it."""
    with torch.no_grad(), FakeTensors():
        model = described_model(shape).eval()
        tokens_BT = model.blank(1, 1, window)[0][0, :1]
        state = model.read(tokens_BT).state

        def flops(state: State | None, leave_state: bool) -> int:
            with _as_products(), FlopCounter() as counter:
                model.read(tokens_BT, state, leave_state=leave_state)
            return counter.flops

        first, first_left = (flops(None, leave_state) for leave_state in (False, True))
        later, later_left = (flops(state, leave_state) for leave_state in (False, True))
        made = first_left - first
        model.recurrence = None
        work = Work(made, used=later - flops(None, False), carried=later_left - later - made)
        return Counted(work, sum(leaf.numel() for leaf in tree_leaves(state) if leaf.is_floating_point()))


def _as_products() -> AbstractContextManager[None]:
    """Attention as its products: where it is one operation, a CPU's is not counted by torch."""
    return sdpa_kernel(SDPBackend.MATH)


def state_floats(config: TrialConfig, shape: Shape, base: PretrainedConfig) -> int:
    """Numbers in one stream's state, by the mechanism's closed form where it has one."""
    closed = closed_state_floats(config, shape)
    return counted(config, base).state_floats if closed is None else closed


def frozen_training_flops(config: TrialConfig, base: PretrainedConfig, kept: int) -> float:
    """Training FLOPs per scored token with a frozen body: its weights have no gradient, and layers below the first with
    something that learns have no backward pass."""
    shape, windows = _described(config, base), config.bptt_windows
    trained = Trained(config.trainable, config.lora_spec)
    if config.mechanism is None and config.has_separate_windows:  # all windows are the same
        return windows * _frozen_step(shape, config.window, 1, 1, trained) / config.windowing.span(windows)
    if config.mechanism and config.mechanism.stops_gradients:
        kept = windows  # no window is run again
    # Each further window adds the same FLOPs, and each kept one saves the same; the first, which has no state, differs.
    is_whole, further = kept == windows, max(0, windows - _SIMULATED)
    short_kept = 1 if further else kept

    def step(windows: int, kept: int) -> int:
        return _frozen_step(shape, config.window, windows, windows if is_whole else kept, trained)

    total = step(windows - further, short_kept)
    if further:
        total += further * (total - step(_SIMULATED - 1, 1))
        total -= 0 if is_whole else (kept - 1) * (step(_SIMULATED, 1) - step(_SIMULATED, 2))
    return total / config.windowing.span(windows)


@cache
def _frozen_step(shape: str, window: int, windows: int, kept: int, trained: Trained) -> int:
    """FLOPs of a step on one chain."""
    with FakeTensors():
        model = described_model(shape)
        trained.apply(model)
        with _as_products(), FlopCounter() as counter:
            Chain(model, Plan(kept)).differentiate(simulated_batch(windows, 1, window, model=model))
    return counter.flops


def simulated_batch(windows: int, chains: int, window: int, top: int = 0, *, model: Windowed) -> WindowBatch:
    """A batch of chains for a model, each at the start of a document; with a teacher's `top` likeliest tokens, unless
    it is 0."""
    inputs, targets = model.blank(windows, chains, window)
    return WindowBatch(
        inputs_WBT=inputs,
        targets_WBT=targets,
        fresh_WB=torch.zeros(inputs.shape[:2], dtype=torch.bool),
        starts=("all", *["none"] * (windows - 1)),  # type: ignore[arg-type]
        scored=1,
        step_scored=1,
        teacher=_simulated_teacher((windows, chains, window), top) if top else None,
    )


def _simulated_teacher(positions: tuple[int, ...], top: int) -> TeacherRows:
    return TeacherRows(
        torch.zeros((*positions, top), dtype=torch.int32), torch.zeros((*positions, top + 1), dtype=torch.half), 0.5
    )


def counted_work(config: TrialConfig, base: PretrainedConfig) -> Work | None:
    """Counted FLOPs of a recurrence without a closed form; None where it has one."""
    return None if is_closed(config) else counted(config, base).work


def training_flops(config: TrialConfig, shape: Shape, base: PretrainedConfig, plan: Plan) -> float:
    """Training FLOPs per scored token, in closed form where there is one."""
    if config.trainable != "all":
        return frozen_training_flops(config, base, plan.kept_windows)
    return training_flops_per_token(config, shape, plan, counted_work(config, base))


def trained_parameters(config: TrialConfig, shape: Shape) -> int:
    """Weights that learn: the base's or LoRA's, and the recurrence's."""
    of_base = shape.parameters if config.trainable == "all" else 0
    of_lora = config.lora_spec.parameters(shape) if config.lora_spec else 0
    return of_base + of_lora + recurrence_parameters(config, shape)


def recurrence_parameters(config: TrialConfig, shape: Shape) -> int:
    """Weights that the recurrence adds."""
    if config.mechanism is None or config.recurrence_spec is None:
        return 0
    with torch.device("meta"):  # counts, and fills nothing
        return sum(p.numel() for p in config.mechanism.build(config.recurrence_spec, shape).parameters())
