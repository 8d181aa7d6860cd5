"""Where a search departs from Ray Tune's own behaviour, and why. Seen with Ray 2.60.

Ray Tune schedules trials and Optuna proposes them. A search keeps its own log and resumes from it, so Ray Tune's result
files, checkpoints and Ctrl-C handler are off (`TUNE_SETTINGS`), and what Ray Tune would pickle is empty (`DriverOnly`).

OptunaSearcher   Ray's OptunaSearch tells Optuna that pruned and failed trials are COMPLETE, with their last values.
                 Ours tells each trial's true state, and keeps its study in the search's journal (`StudyOnDisk`).
ParetoPruning    Ray Tune has no scheduler for several objectives; this is a FIFOScheduler that stops trials.
max_failures     Ray counts every error of a trial, reads this limit at each and has no call to change it. A move to
                 another node is no failure, so the limit rises by one; an error that would recur sets it to 0.
concurrency      The searcher knows how many trials fit. Without a number Ray starts actors one after the other.

`tests/cluster/test_ray_tune_adaptations.py` fails where a new version of Ray changed a name that is used here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna
    from ray.tune.experiment import Trial
    from ray.tune.search.optuna import OptunaSearch

# Environment variables, which Ray Tune reads when it is imported, in the driver and in its workers.
TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the search's log holds all results
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # at Ctrl-C trials first save their checkpoints
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a report is one JSON text, without the metrics that Ray looks for
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",  # once a day: a search resumes from its log, not from Ray's checkpoint
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",  # no warning about that checkpoint
    "TUNE_RESULT_BUFFER_LENGTH": "1",  # every report is decided on before the trial's next one
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "30",  # an actor is reused once its trial has finished its step; Ray waits 2 s
    "RAY_AIR_NEW_OUTPUT": "0",  # no progress table
}
MAX_CONCURRENT_TRIALS = 100_000  # more than any cluster has room for


class DriverOnly:
    """Pickles to nothing. Ray Tune pickles a searcher, a scheduler and callbacks in order to restore them; ours hold
    open files, locks and signal handlers, and are built anew from the log."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class StudyOnDisk(DriverOnly):
    """For a subclass of OptunaSearch whose study is a journal on disk: nothing is saved, restored or told on the
    way."""

    @property
    def study(self) -> optuna.Study:
        """Optuna's study."""
        return optuna_study(self)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Do nothing: Optuna takes no intermediate values of several objectives; the log has them."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the journal and the log are written as things happen."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing."""


def optuna_study(search: OptunaSearch) -> optuna.Study:
    """The study of Ray's OptunaSearch, which has no public name."""
    study: optuna.Study = search._ot_study
    return study


def allow_another_failure(trial: Trial) -> None:
    """Do not count the trial's next error: it moves to another node."""
    trial.max_failures += 1


def allow_no_failure(trial: Trial) -> None:
    """Do not start the trial again after its next error."""
    trial.max_failures = 0


def last_failure(trial: Trial) -> str:
    """Why Ray starts a trial again, in a line; empty at its first start. Ray has it only in the trial's error file."""
    if not trial.error_file or not Path(trial.error_file).exists():
        return ""
    lines = Path(trial.error_file).read_text().rpartition("Failure # ")[2].splitlines()[1:]
    # Ray's own message stands at the top; Python's exception stands below a traceback's frames, which are indented.
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    below = lines[frames[-1] + 1 :] if frames else lines
    return next((line[:200] for line in below if line.strip() and not line.startswith(" ")), "no reason given")
