"""Learning-rate schedule: whether it fits the budget."""

from __future__ import annotations

from recur_tune.common.units import format_count
from recur_tune.config.trial import TrialConfig


def misfit(config: TrialConfig) -> str | None:
    """A warning where the budget is less than one step, or the warm-up takes more than half of it."""
    budget, step = format_count(config.tokens), f"a step of {format_count(config.step_tokens)} ({step_of(config)})"
    if config.tokens < config.step_tokens:
        return f"tokens: the budget of {budget} is less than {step}."
    if config.warmup > config.steps / 2:
        return (
            f"warmup_steps: the learning rate rises for {config.warmup} of about {config.steps} steps ({budget} "
            f"tokens, at {step}); choose fewer, so that more steps have the full rate."
        )
    return None


def step_of(config: TrialConfig) -> str:
    """The fields that decide how many tokens a step scores."""
    overlap = f", overlap {config.overlap}" if config.overlap else ""
    return f"batch {config.batch}, bptt_windows {config.bptt_windows}, window {config.window}{overlap}"
