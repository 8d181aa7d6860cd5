"""Units of MLflow's metrics: few digits, and the unit in the name.

A column has room for about ten characters. All searches share a unit, so that their runs can be compared.
"""

from __future__ import annotations

from recur_tune.common.units import rounded
from recur_tune.cost.descriptors import COSTS

_IN_UNITS = {name: cost.metric for name, cost in COSTS.items()}
_IN_UNITS["measured_peak_memory"] = ("measured_peak_memory_MiB", 2.0**20)


def metric_name(name: str) -> str:
    """MLflow's name of a metric."""
    return _IN_UNITS[name][0] if name in _IN_UNITS else name


def metric_value(name: str, value: float) -> float:
    """A metric's value in MLflow's unit, rounded."""
    return rounded(value / _IN_UNITS[name][1] if name in _IN_UNITS else value)


def unit_of(name: str) -> float:
    """How much one of a metric's units is."""
    return _IN_UNITS[name][1] if name in _IN_UNITS else 1.0
