"""Rungs in optimizer steps, for the smallest and for the largest step of the space.

Rungs are counted in tokens, so that a trial with larger steps has fewer of them. A step scores fewer tokens where
documents end, so that these numbers are lower bounds.
"""

from __future__ import annotations

from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.units import format_count
from recur_tune.config.schedule import misfit, step_of
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.spec import SearchSpec


def check_rungs(spec: SearchSpec) -> None:
    """Refuse a first rung that is shorter than the largest step: trials would be compared after unequal numbers of
    tokens, or twice after the same step."""
    largest, first = _by_step(spec)[-1], spec.budget.rung_tokens[0]
    if first < largest.step_tokens:
        fewer = ", fewer rungs" if spec.budget.rungs > 1 else ""
        raise UserError(
            f"budget: the first rung comes after {format_count(first)} tokens, and a single step can score "
            f"{format_count(largest.step_tokens)} ({step_of(largest)}); give more tokens{fewer} or smaller steps."
        )


def search_misfit(spec: SearchSpec) -> str | None:
    """A remark on the trial whose warm-up takes the largest share of its budget, if there is one to make."""
    return misfit(max(spec.corners, key=lambda config: config.warmup / config.steps))


def in_steps(spec: SearchSpec) -> dict[str, Any]:
    """The smallest and the largest of each: tokens of a step, steps at each rung, steps of the warm-up."""
    smallest, *_, largest = _by_step(spec) * 2
    warmups = [config.warmup for config in spec.corners]
    return {
        "step_tokens": [smallest.step_tokens, largest.step_tokens],
        "rungs": [[config.steps_of(tokens) for config in (largest, smallest)] for tokens in spec.budget.rung_tokens],
        "warmup": [min(warmups), max(warmups)],
    }


def describe_steps(spec: SearchSpec) -> str:
    """The same in a line of text."""
    steps = in_steps(spec)
    least, most = map(format_count, steps["step_tokens"])
    *between, last = (_span(*pair) for pair in steps["rungs"])
    rungs = f"{', '.join(between)} and {last} at the end" if between else last
    size = least if least == most else f"{least} to {most}"
    return f"in steps of {size} tokens: {rungs}; {_warmup(*steps['warmup'])}"


def _warmup(least: int, most: int) -> str:
    if most == 0:
        return "the learning rate has no warm-up"
    return f"the learning rate rises over the first {_span(least, most)} step{'s' if most > 1 else ''}"


def _by_step(spec: SearchSpec) -> list[TrialConfig]:
    return sorted(spec.corners, key=lambda config: config.step_tokens)


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
