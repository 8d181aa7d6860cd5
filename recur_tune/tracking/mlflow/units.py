"""Numbers as MLflow's columns show them best: few digits, and a unit that stands in the name.

A column has room for some ten characters. Every search shares one unit, so that their runs can be compared.
"""

from __future__ import annotations

from recur_tune.common.units import rounded

_IN_UNITS = {
    "flops_per_token": ("MFLOPs_per_token", 1e6),
    "training_flops_per_token": ("training_MFLOPs_per_token", 1e6),
    "peak_memory": ("peak_memory_MiB", 2.0**20),
    "inference_memory": ("inference_memory_MiB", 2.0**20),
    "measured_peak_memory": ("measured_peak_memory_MiB", 2.0**20),
    "parameters": ("parameters_M", 1e6),
}


def metric_name(name: str) -> str:
    """What MLflow calls an objective, or anything else that is measured."""
    return _IN_UNITS[name][0] if name in _IN_UNITS else name


def metric_value(name: str, value: float) -> float:
    """The value in the unit of that name, rounded."""
    return rounded(value / _IN_UNITS[name][1] if name in _IN_UNITS else value)
