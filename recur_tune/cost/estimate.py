"""A configuration's costs in one place, as `recur-tune cost` prints them and a search ranks them."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import GPT2Config

from recur_tune.cost.flops import flops_per_token, training_flops_per_token
from recur_tune.cost.memory import plan_memory, resolve_plan
from recur_tune.model.recurrence import Memory
from recur_tune.spec import TrialConfig
from recur_tune.training.bptt import Plan


@dataclass(frozen=True)
class Cost:
    """What a trial will cost, known before it runs."""

    flops_per_token: float
    training_flops_per_token: float
    peak_memory: int
    parameters: int
    recurrence_parameters: int
    plan: Plan


def estimate(config: TrialConfig, base: GPT2Config, workers: int = 1) -> Cost:
    """Price a trial; `workers` share its batch."""
    config.check_base(base)
    lanes = -(-config.batch // workers)
    plan = resolve_plan(config, base, lanes)
    recurrence = recurrence_parameters(config, base)
    return Cost(
        flops_per_token=flops_per_token(config, base),
        training_flops_per_token=training_flops_per_token(config, base, plan),
        peak_memory=plan_memory(config, base, plan, lanes),
        parameters=body_parameters(base) + recurrence,
        recurrence_parameters=recurrence,
        plan=plan,
    )


def body_parameters(base: GPT2Config) -> int:
    """Weights of a GPT-2, the vocabulary counted once because input and output share it."""
    k, inner = base.n_embd, base.n_inner or 4 * base.n_embd
    block = 4 * k + (3 * k * k + 3 * k) + (k * k + k) + (2 * k * inner + inner + k)
    return (base.vocab_size + base.n_positions) * k + base.n_layer * block + 2 * k


def recurrence_parameters(config: TrialConfig, base: GPT2Config) -> int:
    """Weights that the recurrence adds."""
    if config.memory is None:
        return 0
    return sum(p.numel() for p in Memory(base.n_embd, base.n_layer, **config.memory.model_dump()).parameters())
