"""Costs of a trial, each described once: estimates, limits, objectives, units, reports and commands read it here.

A further cost is a further descriptor. Nothing here imports torch before a cost is predicted: flags, spaces and reports
need the descriptions alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recur_tune.bptt.plan import fixed_plan
from recur_tune.common.shape import Shape
from recur_tune.common.units import BYTES, COUNT, Unit
from recur_tune.config.trial import TrialConfig
from recur_tune.cost import flops
from recur_tune.cost import inference_memory as inference
from recur_tune.cost.priced_trial import PricedTrial
from recur_tune.recurrences.registry import FIELDS, MECHANISMS
from recur_tune.tasks.registry import TASKS


@dataclass(frozen=True)
class CostDescriptor:
    """A cost that is known before a trial runs.

    Attributes:
        name: In files, limits and objectives.
        title: In tables and on axes.
        explained: In the table of `recur-tune cost`.
        unit: How it is written.
        metric: MLflow's name for it, and how much one of that is.
        fields: Fields of a trial that it depends on; the others change nothing.
        predict: The cost of a trial.
        closed_form: The same from a trial and its body's shape alone, for a trial whose recurrence has closed forms;
            None where a step has to be simulated.
        is_quick: Whether it takes no simulated step, so that a sampler can ask for hundreds of candidates.
    """

    name: str
    title: str
    explained: str
    unit: Unit
    metric: tuple[str, float]
    fields: frozenset[str]
    predict: Callable[[PricedTrial], float]
    closed_form: Callable[[TrialConfig, Shape], float | None] = lambda config, shape: None
    is_quick: bool = False


def _flops_per_token(trial: PricedTrial) -> float:
    from recur_tune.cost.counted_flops import counted_work

    return flops.flops_per_token(trial.config, trial.shape, counted_work(trial.config, trial.base))


def _training_flops(trial: PricedTrial) -> float:
    from recur_tune.cost.counted_flops import training_flops

    return training_flops(trial.config, trial.shape, trial.base, trial.plan)


def _closed_training_flops(config: TrialConfig, shape: Shape) -> float | None:
    """None where the plan depends on what memory is left, or the body is frozen: both take a simulated step."""
    if config.checkpointing == "auto" or config.trainable != "all":
        return None
    return flops.training_flops_per_token(config, shape, fixed_plan(config.checkpointing, config.bptt_windows))


def _peak_memory(trial: PricedTrial) -> int:
    from recur_tune.cost.training_memory import plan_memory

    return plan_memory(trial.config, trial.base, trial.plan, trial.chains, trial.shards)


def _inference_memory(trial: PricedTrial) -> int:
    from recur_tune.cost.counted_flops import state_floats

    floats = state_floats(trial.config, trial.shape, trial.base)
    return inference.inference_memory(trial.config, trial.shape, floats)


def _closed_inference_memory(config: TrialConfig, shape: Shape) -> float:
    return inference.inference_memory(config, shape, inference.closed_state_floats(config, shape) or 0)


def _parameters(config: TrialConfig, shape: Shape) -> int:
    from recur_tune.cost.counted_flops import recurrence_parameters

    return shape.parameters + recurrence_parameters(config, shape)


_RECURRENCE = frozenset({"recurrence", *FIELDS})
_ALL = MECHANISMS.values()
_IN_PRODUCTS = {"recurrence"}.union(*(one.spec.model_fields.keys() - one.flops_independent_fields for one in _ALL))
_IN_STATE = {"recurrence"}.union(*(one.spec.model_fields.keys() - one.state_independent_fields for one in _ALL))
_OF_TASKS = set[str]().union(
    *(task.spec.model_fields.keys() - task.flops_independent_fields for task in TASKS.values())
)
# Fields that decide the size of a body which a task makes.
_OF_BODIES = set[str]().union(*(task.spec.model_fields.keys() for task in TASKS.values() if task.body is not None))
_PRODUCTS = frozenset({*_IN_PRODUCTS, *_OF_TASKS, "base", "window", "overlap"})
_STEP = _RECURRENCE.union(*(task.memory_fields for task in TASKS.values())) | {
    "base", "tokenizer", "window", "overlap", "bptt_windows", "batch", "dropout", "precision", "checkpointing",
    "memory_budget", "trainable", "lora_rank", "lora_targets", "lora_dropout", "base_bits",
    "cuda_graph", "fused_kernels", "tokens",  # these choose kernels, which keep less
}  # fmt: skip

COSTS: dict[str, CostDescriptor] = {
    cost.name: cost
    for cost in (
        CostDescriptor(
            "flops_per_token", "FLOPs/token", "FLOPs per token (forward: blocks and recurrence)", COUNT,
            metric=("MFLOPs_per_token", 1e6), fields=_PRODUCTS, predict=_flops_per_token,
            closed_form=flops.flops_per_token, is_quick=True,
        ),
        CostDescriptor(
            "training_flops_per_token", "training FLOPs/token", "FLOPs per token (training: everything)", COUNT,
            metric=("training_MFLOPs_per_token", 1e6),
            fields=_PRODUCTS | _STEP,  # 'auto' runs fewer windows again where memory is left
            predict=_training_flops, closed_form=_closed_training_flops,
        ),
        CostDescriptor(
            "peak_memory", "peak memory", "peak memory of a training step", BYTES,
            metric=("peak_memory_MiB", 2.0**20), fields=_STEP, predict=_peak_memory,
        ),
        CostDescriptor(
            "inference_memory", "inference memory", "inference memory of one stream", BYTES,
            metric=("inference_memory_MiB", 2.0**20),
            fields=frozenset({*_IN_STATE, *_OF_BODIES, "base", "window", "precision"}),
            predict=_inference_memory, closed_form=_closed_inference_memory, is_quick=True,
        ),
        CostDescriptor(
            "parameters", "parameters", "parameters", COUNT,
            metric=("parameters_M", 1e6), fields=frozenset({*_IN_PRODUCTS, *_OF_BODIES, "base", "tokenizer", "window"}),
            predict=lambda trial: _parameters(trial.config, trial.shape), closed_form=_parameters,
        ),
    )
}  # fmt: skip
