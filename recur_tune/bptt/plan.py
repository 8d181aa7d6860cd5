"""Plan of a training step: which windows keep their activations, and how operations are launched. It needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from recur_tune.config.trial import TrialConfig

if TYPE_CHECKING:  # importing torch takes seconds
    import torch

_WORTH_COMPILING = 1e14  # weights times tokens; a trial with less work ends sooner with a CUDA graph alone


@dataclass(frozen=True)
class Plan:
    """Activation checkpointing: how much a step keeps from the first reading.

    Attributes:
        kept_windows: How many windows, counted from the chain's end, keep their activations. The backward pass uses
            these first and frees them before it recomputes earlier ones. So the last window is always kept: this takes
            no more memory than recomputing one.
    """

    kept_windows: int = 1


def fixed_plan(policy: Literal["all", "none"], windows: int) -> Plan:
    """`all` recomputes all windows but the last, so memory does not grow with their number; `none` recomputes none."""
    return Plan(kept_windows=1 if policy == "all" else windows)


class Execution(NamedTuple):
    """How a step's operations are launched.

    Attributes:
        cuda_graph: As one CUDA graph.
        fused_kernels: Between matrix products by fused Triton kernels; else by torch's own operations.
    """

    cuda_graph: bool = False
    fused_kernels: bool = False

    def __str__(self) -> str:
        parts = [name for name, is_on in zip(("CUDA graph", "fused kernels"), self, strict=True) if is_on]
        return " and ".join(parts) or "operation by operation"


def chosen_execution(config: TrialConfig, weights: int, device: torch.device) -> Execution:
    """The fastest way that a trial of a base of so many weights, and its device, allow."""
    if device.type != "cuda":  # both need a GPU
        return Execution()
    is_worth_it = weights * config.tokens >= _WORTH_COMPILING
    fused = is_worth_it if config.fused_kernels == "auto" else config.fused_kernels
    return Execution(cuda_graph=bool(config.cuda_graph), fused_kernels=fused)
