"""Estimate: a trial's costs before it runs, for `recur-tune cost` and for a search."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from transformers import PretrainedConfig

from recur_tune.bptt.plan import Plan
from recur_tune.common.shape import Shape, shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.communication import exchanged_bytes
from recur_tune.cost.counted_flops import recurrence_parameters, trained_parameters
from recur_tune.cost.descriptors import COSTS
from recur_tune.cost.priced_trial import PricedTrial


@dataclass(frozen=True)
class Estimate:
    """Predicted costs of a trial.

    Attributes:
        costs: By their names, in the order of the descriptors.
        recurrence_parameters: Of its weights, the recurrence's.
        plan: Which windows keep their activations.
        trained_parameters: Weights that learn; LoRA's are none of the model's, since they are merged into it.
        exchanged_bytes: That each of several workers sends in a step.
    """

    costs: dict[str, float]
    recurrence_parameters: int
    plan: Plan
    trained_parameters: int = 0
    exchanged_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **self.costs,
            "recurrence_parameters": self.recurrence_parameters,
            "trained_parameters": self.trained_parameters,
            "plan": asdict(self.plan),
            "exchanged_bytes": self.exchanged_bytes,
        }


def estimate(config: TrialConfig, base: PretrainedConfig, workers: int = 1, shard: bool = False) -> Estimate:
    """Predict a trial's costs; `workers` share its batch, and with `shard` the optimizer's state."""
    shape = shape_of(base.to_dict())
    config.check_base(shape)
    trial = PricedTrial(config, base, shape, workers, shard)
    costs = {name: cost.predict(trial) for name, cost in COSTS.items()}
    return Estimate(
        costs,
        recurrence_parameters(config, shape),
        trial.plan,
        trained_parameters(config, shape),
        exchanged_bytes(config, shape, workers),
    )


def quick_costs(config: TrialConfig, shape: Shape, base: PretrainedConfig) -> dict[str, float]:
    """The costs that need no simulated step, by their names; `base` is for a recurrence without closed forms."""
    trial = PricedTrial(config, base, shape)
    return {name: cost.predict(trial) for name, cost in COSTS.items() if cost.is_quick}
