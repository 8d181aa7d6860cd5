"""Ray Tune's callbacks in the driver: a round of its loop begins, a trial starts, a trial has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from recur_tune.cluster.liveness import ClusterWatchdog
from recur_tune.cluster.ray_tune_adaptations import DriverOnly, last_failure
from recur_tune.common.throttle import Every
from recur_tune.search.record.directory import STOP, SearchLog
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.requests import end_by_hand, take_ends
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED
from recur_tune.search.run.outputs import Exporter
from recur_tune.search.run.progress_lines import SAVING
from recur_tune.search.run.trial_files import TrialFiles

_SECONDS_BETWEEN_LOOKS = 0.5  # at requests, which lie on a file system


class DriverCallback(DriverOnly, Callback):
    """Logs starts, passes a request to stop on to the trials, updates the exporter, removes files of ended trials."""

    def __init__(
        self,
        spec: SearchSpec,
        log: SearchLog,
        wants_to_stop: Callable[[], bool],
        exporter: Exporter,
        watchdog: ClusterWatchdog,
        look_ahead: Callable[[], None] = lambda: None,
    ) -> None:
        self.look_ahead = look_ahead
        self.log, self.wants_to_stop, self.exporter, self.watchdog = log, wants_to_stop, exporter, watchdog
        self.files = TrialFiles(spec, log)
        self.due = Every(_SECONDS_BETWEEN_LOOKS)
        self.pause_told = False

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Take requests, and ask the trials to stop by a file in the search directory, which every node sees."""
        self.watchdog.check()
        if self.due():
            self.log.directory.check_lease()
            for number in take_ends(self.log):
                self._end(number)
            self._tell_pause()
            self.look_ahead()
        self._stops()
        self.exporter.export(self.log.state)

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Log that a worker has the trial. One that has ended is not logged: its workers died while they left, and Ray
        starts it again. Nor is one that Ray had on its way when the search was asked to stop: it pauses at once."""
        number, before = trial.config["number"], last_failure(trial)
        if self.log.state.record(number).state not in ENDED and not self._stops():
            part = {"gpus": trial.config["gpus"]} if "tensors_share" in trial.config else {}  # of a GPU that it shares
            self.log.record("running", trial=number, **part, **({"after": before} if before else {}))

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """The trial has ended or is paused."""
        self.files.clear_up(trial.config["number"])

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """The trial has ended with its actor."""
        self.files.clear_up(trial.config["number"])

    def _stops(self) -> bool:
        """Whether the trials are asked to stop; ask them where the driver is."""
        if self.wants_to_stop() and not self.log.directory.stop_requested:
            self.log.directory.request_stop()
        return self.log.directory.stop_requested

    def _tell_pause(self) -> None:
        """Log that trials save checkpoints."""
        if self.log.directory.stop_requested and not self.pause_told:
            self.log.record("stage", text=SAVING)
            self.pause_told = True

    def _end(self, number: int) -> None:
        """End a trial on request; its worker leaves when it sees the file."""
        if number in self.log.state.trials and self.log.state.record(number).state not in ENDED:
            was_paused = self.log.state.record(number).paused_at_rung
            end_by_hand(self.log, number)
            if was_paused:  # no worker has it
                self.files.clear_up(number)
            self.log.directory.trial(number).mkdir(parents=True, exist_ok=True)
            FlagFile(self.log.directory.trial(number) / STOP).set()
