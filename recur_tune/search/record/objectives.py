"""Objectives of a search: qualities, which training measures, and costs, which are known before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from recur_tune.common.units import Unit, parse_count
from recur_tune.cost import descriptors
from recur_tune.tasks.registry import TASKS


@dataclass(frozen=True)
class Objective:
    """A number of a trial that is minimised; it stands under its name in a validation's metrics or in the costs."""

    name: str
    title: str  # for tables and axes
    kind: Literal["quality", "cost"]
    unit: Unit

    @property
    def format(self) -> Callable[[float], str]:
        """Format a value for people."""
        return self.unit.format


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


_PLAIN = Unit(_plain, parse_count)

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        *(Objective(*quality, "quality", _PLAIN) for task in TASKS.values() for quality in task.qualities),
        *(Objective(cost.name, cost.title, "cost", cost.unit) for cost in descriptors.COSTS.values()),
    )
}
COSTS = {name: objective for name, objective in OBJECTIVES.items() if objective.kind == "cost"}
SAME_COST = 0.05  # relative difference below which two costs count as equal
