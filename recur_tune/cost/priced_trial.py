"""PricedTrial: the inputs of a cost prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from recur_tune.bptt.plan import Plan
from recur_tune.common.shape import Shape
from recur_tune.config.trial import TrialConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class PricedTrial:
    """A trial on a base of known shape, shared by some workers.

    Attributes:
        config: The trial.
        base: The base's configuration, as transformers has it.
        shape: The base's shape.
        workers: Workers that share a step's batch.
        shard: Whether they share the optimizer's state too.
    """

    config: TrialConfig
    base: PretrainedConfig
    shape: Shape
    workers: int = 1
    shard: bool = False

    @property
    def chains(self) -> int:
        """Chains of windows in the batch of the busiest worker."""
        return -(-self.config.batch // self.workers)

    @property
    def shards(self) -> int:
        """Workers that share the optimizer's state."""
        return self.workers if self.shard else 1

    @cached_property
    def plan(self) -> Plan:
        """Which windows keep their activations; `auto` takes simulated steps to resolve."""
        from recur_tune.cost.training_memory import resolve_plan  # torch takes seconds to import

        return resolve_plan(self.config, self.base, self.chains, self.shards)
