"""How far a search is and how long it will go on."""

from __future__ import annotations

from typing import NamedTuple

from recur_tune.search.record.spec import Budget
from recur_tune.search.record.state import SearchState

_LEAST_TRIALS = 3  # trials; the first ones waited for the cluster, and say little about the others


def ended_trials(state: SearchState) -> int:
    """Trials that took a place in the budget and will not go on."""
    return sum(1 for _ in state.in_state("complete", "pruned", "failed"))


def share_done(state: SearchState, budget: Budget) -> float:
    """How much of the budget is spent, by whatever ends the search first: 0 to 1."""
    shares = []
    if budget.trials is not None:
        shares.append(ended_trials(state) / budget.trials)
    if budget.wall_clock is not None:
        shares.append(state.active_seconds / budget.wall_clock)
    return min(1.0, max(shares))


class Forecast(NamedTuple):
    """Trials that will end, and the most hypervolume that they are expected to add."""

    trials: float
    hypervolume: float


def next_hour(state: SearchState) -> Forecast | None:
    """At the pace so far, each as much as the trial that was chosen last, since the best is chosen first; None where
    that is not known."""
    ended = ended_trials(state)
    gains = expected_gains(state)
    if ended < _LEAST_TRIALS or not gains or not state.active_seconds:
        return None
    trials = 3600 * ended / state.active_seconds
    return Forecast(trials, trials * gains[-1])


def expected_gains(state: SearchState) -> list[float]:
    """What trials were expected to add when they were chosen, in their order; not of those that no model chose."""
    return [trial.gain for trial in state.trials.values() if trial.gain is not None]


def seconds_left(state: SearchState, budget: Budget) -> float | None:
    """What its budget of time leaves, or what the trials so far took on average; None while nothing is known."""
    limits, ended = [], ended_trials(state)
    if budget.wall_clock is not None:
        limits.append(budget.wall_clock - state.active_seconds)
    if budget.trials is not None and ended >= _LEAST_TRIALS:
        limits.append((budget.trials - ended) * state.active_seconds / ended)
    return max(0.0, min(limits)) if limits else None
