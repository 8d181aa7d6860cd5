"""What Ray Tune tells between reports: a trial starts, a trial has ended, another round of its loop begins."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from recur_tune.common.throttle import Every
from recur_tune.search.record.directory import MODEL, STOP, SearchLog
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.front import front
from recur_tune.search.record.requests import end_by_hand, take_ends
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED
from recur_tune.sites.ray.liveness import Lifeline
from recur_tune.sites.ray.ray_tune_adaptations import DriverOnly, last_failure
from recur_tune.tracking.prometheus.exporter import Meter
from recur_tune.training.run_folder import RESUME

_SECONDS_BETWEEN_LOOKS = 0.5  # at requests, which lie on a file system


class DriverCallback(DriverOnly, Callback):
    """Notes starts, passes a request to stop on to the trials, tells the meter what there is to say, and clears up
    what no one will need."""

    def __init__(
        self, spec: SearchSpec, log: SearchLog, wants_to_stop: Callable[[], bool], meter: Meter, lifeline: Lifeline
    ) -> None:
        self.spec, self.log, self.wants_to_stop, self.meter = spec, log, wants_to_stop, meter
        self.lifeline = lifeline
        self.front = front(log.state.trials.values(), spec.objectives)
        self.due = Every(_SECONDS_BETWEEN_LOOKS)

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Trials look for the request in the search directory, on whatever machine they run."""
        self.lifeline.check()
        for number in take_ends(self.log.directory) if self.due() else ():
            self._end(number)
        if self.wants_to_stop() and not self.log.directory.stop_requested:
            self.log.directory.request_stop()
        self.meter.tell(self.log.state)

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A worker has taken the trial; one that ended and is tried again, since its workers died while they left, has
        nothing more to say."""
        number, before = trial.config["number"], last_failure(trial)
        if self.log.state.record(number).state not in ENDED:
            part = {"gpus": trial.config["gpus"]} if "tensors_share" in trial.config else {}  # of a card that it shares
            self.log.record("running", trial=number, **part, **({"after": before} if before else {}))

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Ended or paused."""
        self._clear_up(trial.config["number"])

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Ended with its actor."""
        self._clear_up(trial.config["number"])

    def _end(self, number: int) -> None:
        """Somebody has seen enough of a trial; its worker leaves when it sees the file."""
        if number in self.log.state.trials and self.log.state.record(number).state not in ENDED:
            was_paused = self.log.state.record(number).paused_at_rung
            end_by_hand(self.log, number)
            if was_paused:  # no worker has it
                self._clear_up(number)
            self.log.directory.trial(number).mkdir(parents=True, exist_ok=True)
            FlagFile(self.log.directory.trial(number) / STOP).set()

    def _clear_up(self, number: int) -> None:
        """A checkpoint is for going on, and a model for who is on the front: hundreds of both fill a disk."""
        record, directory = self.log.state.record(number), self.log.directory
        if record.state not in ENDED:
            return
        shutil.rmtree(directory.trial(number) / RESUME, ignore_errors=True)
        if record.state != "complete" or self.spec.keep == "all":
            return
        if record.repeats is not None:  # it was trained for its number
            shutil.rmtree(directory.trial(number) / MODEL, ignore_errors=True)
            return
        # Whoever is beaten by a beaten trial is beaten by the front too: the old front and the newcomer are enough.
        contenders = [*self.front, record]
        self.front = front(contenders, self.spec.objectives)
        kept = self.front if self.spec.keep == "front" else []
        for trial in contenders:
            if trial not in kept:
                shutil.rmtree(directory.trial(trial.number) / MODEL, ignore_errors=True)
