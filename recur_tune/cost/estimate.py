"""A configuration's costs in one place, as `recur-tune cost` prints them and a search ranks them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from recur_tune.bptt.plan import Plan
from recur_tune.common.shape import Shape, shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import counted, frozen_training_flops, state_floats
from recur_tune.cost.flops import flops_per_token, is_closed, training_flops_per_token
from recur_tune.cost.inference_memory import inference_memory
from recur_tune.cost.training_memory import plan_memory, resolve_plan
from recur_tune.recurrences.registry import Work


@dataclass(frozen=True)
class Cost:
    """What a trial will cost, known before it runs."""

    flops_per_token: float
    training_flops_per_token: float
    peak_memory: int
    inference_memory: int
    parameters: int
    recurrence_parameters: int
    plan: Plan


def estimate(config: TrialConfig, base: PretrainedConfig, workers: int = 1) -> Cost:
    """Price a trial; `workers` share its batch."""
    shape = shape_of(base.to_dict())
    config.check_base(shape)
    lanes = -(-config.batch // workers)
    plan = resolve_plan(config, base, lanes)
    recurrence, quick = recurrence_parameters(config, shape), quick_costs(config, shape, base)
    return Cost(
        flops_per_token=quick["flops_per_token"],
        training_flops_per_token=training_flops(config, shape, base, plan),
        peak_memory=plan_memory(config, base, plan, lanes),
        inference_memory=int(quick["inference_memory"]),
        parameters=shape.parameters + recurrence,
        recurrence_parameters=recurrence,
        plan=plan,
    )


def training_flops(config: TrialConfig, shape: Shape, base: PretrainedConfig, plan: Plan) -> float:
    """Everything that a step multiplies per scored token, in closed form where there is one."""
    if config.trainable == "recurrence":
        return frozen_training_flops(config, base, plan.kept_windows)
    return training_flops_per_token(config, shape, plan, _counted(config, base))


def quick_costs(config: TrialConfig, shape: Shape, base: PretrainedConfig) -> dict[str, float]:
    """The costs that need no simulated step, by their names; `base` is for a recurrence that has to be counted."""
    return {
        "flops_per_token": flops_per_token(config, shape, _counted(config, base)),
        "inference_memory": inference_memory(config, shape, state_floats(config, shape, base)),
    }


def _counted(config: TrialConfig, base: PretrainedConfig) -> Work | None:
    """What torch counts of a recurrence that lacks a closed form."""
    return None if is_closed(config) else counted(config, base).work


def recurrence_parameters(config: TrialConfig, shape: Shape) -> int:
    """Weights that the recurrence adds."""
    if config.mechanism is None or config.recurrence_spec is None:
        return 0
    with torch.device("meta"):  # counts, and fills nothing
        return sum(p.numel() for p in config.mechanism.build(config.recurrence_spec, shape).parameters())
