"""Progress of a search: the share of its budget that is spent, and the time that is left."""

from __future__ import annotations

from typing import NamedTuple

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import Budget
from recur_tune.search.record.state import SearchState

_LEAST_TRIALS = 3  # before the pace is told: the first trials waited for the cluster


def status_of(directory: SearchDirectory, state: SearchState) -> str:
    """A search's status: new, preparing, running, paused, finished; or interrupted, where its process died."""
    at_work = {"preparing": "preparing", "started": "running"}
    if directory.is_running:
        return at_work.get(state.status, "running")
    return "interrupted" if state.status in at_work else state.status


def ended_trials(state: SearchState) -> int:
    """Ended trials that count against the budget."""
    return sum(1 for _ in state.in_state("complete", "pruned", "failed"))


def share_done(state: SearchState, budget: Budget) -> float:
    """The share of the budget that is spent, 0 to 1; of two limits the one that is nearer."""
    shares = []
    if budget.trials is not None:
        shares.append(ended_trials(state) / budget.trials)
    if budget.wall_clock is not None:
        shares.append(state.active_seconds / budget.wall_clock)
    return min(1.0, max(shares))


class NextHour(NamedTuple):
    """Trials that will end, an upper bound of their expected hypervolume gain, and whether no more are left."""

    trials: float
    hypervolume: float
    is_rest: bool


def next_hour(state: SearchState, budget: Budget) -> NextHour | None:
    """What it brings at the pace so far, by the expected gain of the last chosen trial for each, since gains decrease;
    of the rest where the budget ends within the hour. None before enough is known, and where nothing is left."""
    ended = ended_trials(state)
    gains = expected_gains(state)
    if ended < _LEAST_TRIALS or not gains or not state.active_seconds:
        return None
    pace, left = ended / state.active_seconds, seconds_left(state, budget)
    if not left:
        return None
    trials = pace * min(3600.0, left)
    return NextHour(trials, trials * gains[-1], left <= 3600)


def expected_gains(state: SearchState) -> list[float]:
    """The expected gains of trials that the model chose, in their order."""
    return [trial.gain for trial in state.trials.values() if trial.gain is not None]


def seconds_left(state: SearchState, budget: Budget) -> float | None:
    """The seconds left by the time budget, or by the trials' mean duration; None before either is known."""
    limits, ended = [], ended_trials(state)
    if budget.wall_clock is not None:
        limits.append(budget.wall_clock - state.active_seconds)
    if budget.trials is not None and ended >= _LEAST_TRIALS:
        limits.append((budget.trials - ended) * state.active_seconds / ended)
    return max(0.0, min(limits)) if limits else None
