"""Files of trials: a checkpoint is kept while its trial may continue, a model while its trial is on the front.

Hundreds of both would fill a disk.
"""

from __future__ import annotations

import shutil

from recur_tune.common.files import PARTIAL
from recur_tune.search.record.directory import MODEL, SearchDirectory, SearchLog
from recur_tune.search.record.front import front
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, TrialRecord
from recur_tune.training import RESUME

_SPARE = 10  # checkpoints for which the disk should have room


class TrialFiles:
    """Removes what is no longer needed when a trial ends."""

    def __init__(self, spec: SearchSpec, log: SearchLog) -> None:
        self.spec, self.log = spec, log
        self.front = front(log.state.trials.values(), spec.objectives)

    def clear_up(self, number: int) -> None:
        """Remove the checkpoint of a trial that ended, and the models that its end makes unneeded."""
        record, directory = self.log.state.record(number), self.log.directory
        if record.state not in ENDED:
            return
        remove_checkpoint(directory, number)
        if record.state != "complete" or self.spec.keep == "all":
            return
        if record.repeats is not None:  # a repeat is trained for its quality alone
            _remove_model(directory, number)
            return
        # Dominance is transitive: the old front and the newcomer are enough to find the new front.
        contenders = [*self.front, record]
        self.front = front(contenders, self.spec.objectives)
        kept = self.front if self.spec.keep == "front" else []
        for trial in contenders:
            if trial not in kept:
                _remove_model(directory, trial.number)


def remove_leftovers(spec: SearchSpec, log: SearchLog) -> None:
    """Remove what a driver that was killed left: checkpoints and unneeded models of ended trials, and partial files."""
    known = {**log.state.trials, **log.state.repeats}
    kept = front(log.state.trials.values(), spec.objectives) if spec.keep == "front" else []
    for folder in (log.directory.path / "trials").glob("[0-9]*"):
        for partial in (*folder.glob(f"{PARTIAL}*"), *folder.glob(f"{RESUME}/{PARTIAL}*")):
            shutil.rmtree(partial, ignore_errors=True)
        record = known.get(int(folder.name))
        if record is None or record.state not in ENDED:
            continue
        remove_checkpoint(log.directory, record.number)
        if record.state == "complete" and spec.keep != "all" and record not in kept:
            _remove_model(log.directory, record.number)


def prune_paused(log: SearchLog, number: int, reason: str) -> TrialRecord:
    """Prune a paused trial, which will not be resumed, and remove its checkpoint."""
    log.record("end", trial=number, state="pruned", reason=reason)
    remove_checkpoint(log.directory, number)
    return log.state.record(number)


def is_short_of_room(log: SearchLog, number: int) -> bool:
    """Whether the disk could not hold ten more checkpoints of that trial's size."""
    checkpoint = log.directory.trial(number) / RESUME
    size = sum(file.stat().st_size for file in checkpoint.glob("*") if file.is_file())
    return shutil.disk_usage(log.directory.path).free < _SPARE * size


def remove_checkpoint(directory: SearchDirectory, number: int) -> None:
    """Remove a trial's checkpoint, if it has one."""
    shutil.rmtree(directory.trial(number) / RESUME, ignore_errors=True)


def _remove_model(directory: SearchDirectory, number: int) -> None:
    shutil.rmtree(directory.trial(number) / MODEL, ignore_errors=True)
