"""Metrics of a search's allocations: how many run and wait, and the time that is left."""

from __future__ import annotations

import threading
from collections import Counter

from recur_tune.common.errors import UserError
from recur_tune.common.throttle import Every
from recur_tune.sites.slurm.folder import SlurmFolder
from recur_tune.sites.slurm.profile import parse_slurm_time
from recur_tune.tracking.prometheus.metrics import Sample

_SECONDS_BETWEEN_POLLS = 30.0  # between questions to SLURM, which all users share


class Allocations:
    """Samples that may be half a minute old, collected in a thread: squeue may be slow, and a search must not wait for
    it. Without an answer there are none."""

    def __init__(self, folder: SlurmFolder) -> None:
        self.folder = folder
        self.answer: list[Sample] = []
        self.due, self.thread = Every(_SECONDS_BETWEEN_POLLS), threading.Thread()

    def __call__(self) -> list[Sample]:
        """The latest samples."""
        if not self.thread.is_alive() and self.due():
            self.thread = threading.Thread(target=self._ask, name="squeue", daemon=True)
            self.thread.start()
        return self.answer

    def _ask(self) -> None:
        try:
            self.answer = _allocations(self.folder)
        except UserError:
            self.answer = []


def _allocations(folder: SlurmFolder) -> list[Sample]:
    jobs = [job for _, job in folder.living_jobs()]
    counts = Counter("running" if job.is_running else "waiting" for job in jobs)
    samples = [Sample("allocations", counts[state], (state,)) for state in ("running", "waiting")]
    for job in jobs:
        if job.is_running and job.time_left[:1].isdigit():  # else it has no limit
            samples.append(Sample("allocation_seconds_left", parse_slurm_time(job.time_left), (str(job.number),)))
    return samples
