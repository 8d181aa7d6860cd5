"""Frozen trials: paused at a rung, with a checkpoint to continue from until the search's end or the disk's."""

from __future__ import annotations

import shutil
from collections.abc import Container
from dataclasses import replace

from recur_tune.search.propose.observations import ObservedTrial, observed_trials
from recur_tune.search.record.directory import SearchLog
from recur_tune.search.record.state import SearchState, TrialRecord
from recur_tune.training.run_folder import RESUME

_SPARE = 10  # checkpoints that shall find room beside those that are there


def give_up(log: SearchLog, number: int, reason: str) -> TrialRecord:
    """A paused trial will not be continued: it counts as pruned, and its checkpoint goes."""
    log.record("end", trial=number, state="pruned", reason=reason)
    shutil.rmtree(log.directory.trial(number) / RESUME, ignore_errors=True)
    return log.state.record(number)


def is_short_of_room(log: SearchLog, number: int) -> bool:
    """Whether the disk could not hold ten more checkpoints like that trial's."""
    checkpoint = log.directory.trial(number) / RESUME
    size = sum(file.stat().st_size for file in checkpoint.glob("*") if file.is_file())
    return shutil.disk_usage(log.directory.path).free < _SPARE * size


def observed_at(state: SearchState, live: Container[int], quality: str) -> list[ObservedTrial]:
    """All trials as a model sees them; a paused one that Ray still has, or has again, is on its way."""
    known = observed_trials((*state.trials.values(), *state.repeats.values()), quality)
    return [replace(one, paused=False, pending=True) if one.paused and one.number in live else one for one in known]
