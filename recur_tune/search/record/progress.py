"""Progress of a search: the share of its budget that is spent, and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import Budget
from recur_tune.search.record.state import SearchState

SHARE_OF_OUTLOOKS = 0.8  # of what may come, in the interval of an outlook
LEAST_TRIALS = 3  # before the pace is told: the first trials waited for the cluster


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
    """The hypervolume that the next hour is expected to add, with an interval; fewer `seconds` where the search ends
    before (`is_rest`), or where the outlook does. Logs of earlier versions have an upper bound alone."""

    trials: float
    hypervolume: float
    is_rest: bool
    seconds: float = 3600.0
    low: float | None = None
    high: float | None = None


def next_hour(state: SearchState, budget: Budget) -> NextHour | None:
    """What the next hour adds at the pace so far; trials are tokens of whole ones. None before enough is known, and
    where nothing is left."""
    left = seconds_left(state, budget)
    if ended_trials(state) < LEAST_TRIALS or not state.active_seconds or not left:
        return None
    if not state.outlook:
        return _at_most(state, left)
    pace = sum(trial.tokens for trial in state.trials.values()) / budget.tokens / state.active_seconds
    if not pace:
        return None
    ahead = state.outlook["trials"]
    seconds = min(3600.0, left, ahead[-1] / pace)
    trials = pace * seconds
    expected, low, high = (_between(ahead, state.outlook[name], trials) for name in ("expected", "low", "high"))
    return NextHour(trials, expected, seconds == left, seconds, low, high)


def _between(ahead: Sequence[float], gains: Sequence[float], trials: float) -> float:
    """An outlook's gain after so many trials, linear between those that it names."""
    points = [(0.0, 0.0), *zip(ahead, gains, strict=True)]
    for (before, low), (after, high) in pairwise(points):
        if trials <= after:
            return low + (high - low) * (trials - before) / (after - before)
    return points[-1][1]


def _at_most(state: SearchState, left: float) -> NextHour | None:
    """The same without an outlook: the expected gain of the last chosen trial for each, since gains decrease."""
    if not (gains := expected_gains(state)):
        return None
    seconds = min(3600.0, left)
    trials = ended_trials(state) / state.active_seconds * seconds
    return NextHour(trials, trials * gains[-1], left <= 3600, seconds)


def expected_gains(state: SearchState) -> list[float]:
    """The expected gains of trials that the model chose, in their order."""
    return [trial.gain for trial in state.trials.values() if trial.gain is not None]


def seconds_left(state: SearchState, budget: Budget) -> float | None:
    """The seconds left by the time budget, or by the trials' mean duration; None before either is known."""
    limits, ended = [], ended_trials(state)
    if budget.wall_clock is not None:
        limits.append(budget.wall_clock - state.active_seconds)
    if budget.trials is not None and ended >= LEAST_TRIALS:
        limits.append((budget.trials - ended) * state.active_seconds / ended)
    return max(0.0, min(limits)) if limits else None
