"""A search's allocations in numbers, for the boards: how many wait, and how long those that run still have."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from recur_tune.errors import UserError
from recur_tune.monitoring.measures import Sample
from recur_tune.slurm.folder import SlurmFolder
from recur_tune.slurm.profile import parse_slurm_time

_SECONDS_BETWEEN_QUESTIONS = 30.0  # to the queue, which everybody asks


def allocations_of(folder: SlurmFolder) -> Callable[[], list[Sample]]:
    """A question whose answer may be half a minute old; a queue that does not answer says nothing."""
    asked, answer = float("-inf"), list[Sample]()

    def ask() -> list[Sample]:
        nonlocal asked, answer
        if time.monotonic() - asked >= _SECONDS_BETWEEN_QUESTIONS:
            asked = time.monotonic()
            try:
                answer = _allocations(folder)
            except UserError:
                answer = []
        return answer

    return ask


def _allocations(folder: SlurmFolder) -> list[Sample]:
    jobs = [job for _, job in folder.living_jobs()]
    counts = Counter("running" if job.is_running else "waiting" for job in jobs)
    samples = [Sample("allocations", counts[state], (state,)) for state in ("running", "waiting")]
    for job in jobs:
        if job.is_running and job.time_left[:1].isdigit():  # else it has no limit
            samples.append(Sample("allocation_seconds_left", parse_slurm_time(job.time_left), (str(job.number),)))
    return samples
