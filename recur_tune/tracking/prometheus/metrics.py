"""Metrics of a search for Prometheus, computed from the search's state.

Nothing here imports Ray or Prometheus. `METRICS` is the only list of names: the exporter, the dashboards and the
documentation use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, get_args

from recur_tune.search.record.front import front, search_hypervolume
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.progress import seconds_left, share_done
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState, TrialRecord, TrialState

PREFIX = "recur_tune_"


@dataclass(frozen=True)
class Metric:
    """A metric's name, meaning and labels beside the search."""

    name: str
    text: str
    by: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels."""
        return ("search", *self.by)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("trials", "trials in each state", ("state",)),
        Metric("base_share", "how much of a base is pretrained, 0 to 1, while the search is being prepared"),
        Metric("base_loss", "nats per token in the latest step of that pretraining"),
        Metric("budget_share", "how much of the search's budget is spent, 0 to 1"),
        Metric("seconds_left", "seconds until the search will be done, estimated"),
        Metric("tokens", "tokens that all trials together have trained on"),
        Metric("hypervolume", "share of the box below the reference that the front dominates, 0 to 1"),
        Metric("front_trials", "trials on the front"),
        Metric("rung_decisions", "trials that were pruned, paused or continued at a rung", ("rung", "decision")),
        Metric("failures", "trials that failed or did not fit, by cause", ("cause",)),
        Metric("quality", "what the trial's latest validation said, in the objective's unit", ("trial", "objective")),
        Metric("training_loss", "nats per token in the trial's latest step", ("trial",)),
        Metric("trial_share", "how much of its tokens a running trial has trained on, 0 to 1", ("trial",)),
        Metric("tokens_per_second", "tokens that a running trial trains on in a second", ("trial",)),
        Metric("flops_utilisation", "a running trial's products per second, of what its device can do", ("trial",)),
        Metric("peak_memory_bytes", "a running trial's peak, predicted and measured", ("trial", "source")),
        Metric("memory_limit_bytes", "the most memory that a trial may take, where the search says so"),
        Metric("allocations", "SLURM allocations of the search in each state of the queue", ("state",)),
        Metric("allocation_seconds_left", "seconds until an allocation ends", ("job",)),
    )
}


class Sample(NamedTuple):
    """One value of a metric; `by` holds the values of its labels, in their order."""

    name: str
    value: float
    by: tuple[str, ...] = ()


def samples_of(state: SearchState, spec: SearchSpec) -> Iterator[Sample]:
    """All samples of a search now."""
    yield from _whole_search(state, spec)
    for trial in state.in_state("running"):
        yield from _running(trial, spec)
    for trial in state.trials.values():
        yield from _qualities(trial, spec)


def _whole_search(state: SearchState, spec: SearchSpec) -> Iterator[Sample]:
    counts = Counter(trial.state for trial in state.trials.values())
    for name in get_args(TrialState):
        yield Sample("trials", counts[name], (name,))
    if state.base_share is not None:
        yield Sample("base_share", state.base_share)
    if state.base_loss is not None:
        yield Sample("base_loss", state.base_loss)
    yield Sample("budget_share", share_done(state, spec.budget))
    if (left := seconds_left(state, spec.budget)) is not None:
        yield Sample("seconds_left", left)
    yield Sample("tokens", sum(trial.tokens for trial in state.trials.values()))
    if (volume := search_hypervolume(state, spec.objectives)) is not None:
        yield Sample("hypervolume", volume)
    yield Sample("front_trials", len(front(state.trials.values(), spec.objectives)))
    yield from _decisions(state, spec)
    causes = Counter(trial.cause or "unknown" for trial in state.in_state("failed", "infeasible"))
    for cause, count in causes.items():
        yield Sample("failures", count, (cause,))
    if "peak_memory" in spec.limits:
        yield Sample("memory_limit_bytes", spec.limits["peak_memory"])


def _decisions(state: SearchState, spec: SearchSpec) -> Iterator[Sample]:
    """Decisions at the rungs; the last rung is the full budget, which decides nothing."""
    *rungs, _ = spec.budget.rung_tokens
    for rung, following in zip(rungs, spec.budget.rung_tokens[1:], strict=True):
        reached = sum(any(one.tokens >= rung for one in trial.validations) for trial in state.trials.values())
        pruned = sum(rung <= trial.tokens < following for trial in state.in_state("pruned"))
        paused = sum(rung <= trial.tokens < following for trial in state.in_state("paused") if trial.paused_at_rung)
        yield Sample("rung_decisions", pruned, (str(rung), "pruned"))
        yield Sample("rung_decisions", paused, (str(rung), "paused"))
        yield Sample("rung_decisions", reached - pruned - paused, (str(rung), "went on"))


def _running(trial: TrialRecord, spec: SearchSpec) -> Iterator[Sample]:
    yield Sample("trial_share", trial.tokens / spec.budget.tokens, (trial.name,))
    if trial.tokens_per_second is not None:
        yield Sample("tokens_per_second", trial.tokens_per_second, (trial.name,))
        if trial.device_flops and "training_flops_per_token" in trial.costs:
            done = trial.tokens_per_second * trial.costs["training_flops_per_token"]
            yield Sample("flops_utilisation", done / (trial.device_flops * trial.workers), (trial.name,))
    if trial.loss is not None:
        yield Sample("training_loss", trial.loss, (trial.name,))
    if "peak_memory" in trial.costs:
        yield Sample("peak_memory_bytes", trial.costs["peak_memory"], (trial.name, "predicted"))
    if trial.measured_peak_memory is not None:
        yield Sample("peak_memory_bytes", trial.measured_peak_memory, (trial.name, "measured"))


def _qualities(trial: TrialRecord, spec: SearchSpec) -> Iterator[Sample]:
    for name in spec.objectives:
        value = trial.value(name)
        if OBJECTIVES[name].kind == "quality" and value is not None:
            yield Sample("quality", value, (trial.name, name))
