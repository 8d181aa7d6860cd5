"""What a search can minimise: qualities that training measures, and costs that are known before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from recur_tune.common.units import format_count, format_size
from recur_tune.tasks.registry import TASKS


@dataclass(frozen=True)
class Objective:
    """One number of a trial, the smaller the better; a validation's metrics, or a `Cost`, have it under its name."""

    name: str
    title: str  # for tables and axes
    kind: Literal["quality", "cost"]
    format: Callable[[float], str]


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        *(Objective(*quality, "quality", _plain) for task in TASKS for quality in task.qualities),
        Objective("flops_per_token", "FLOPs/token", "cost", format_count),
        Objective("training_flops_per_token", "training FLOPs/token", "cost", format_count),
        Objective("peak_memory", "peak memory", "cost", format_size),
        Objective("inference_memory", "inference memory", "cost", format_size),
        Objective("parameters", "parameters", "cost", format_count),
    )
}
COSTS = {name: objective for name, objective in OBJECTIVES.items() if objective.kind == "cost"}
SAME_COST = 0.05  # costs that differ by less count as one
