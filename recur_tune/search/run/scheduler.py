"""The scheduler: logs every report, and prunes or pauses trials at rungs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from recur_tune.cluster.ray_tune_adaptations import DriverOnly, allow_another_failure, allow_no_failure
from recur_tune.search.propose.rungs import SMALL_CHANCE, Rungs
from recur_tune.search.record.directory import STOP, SearchLog
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.front import BEYOND_THE_FIRST
from recur_tune.search.record.objectives import COSTS
from recur_tune.search.record.requests import ADDED, MAY_STOP, RIVAL
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, PAUSED_AT_RUNG, TrialRecord, Validation

_TO_THE_END = ("baseline", ADDED, RIVAL)  # roles of trials that are neither pruned nor paused


class ParetoPruning(DriverOnly, FIFOScheduler):
    """Stops trials at rungs that will hardly end on the front. Ray Tune passes reports here first, so they are logged
    here.

    With `should_continue`, which decides on a trial by its number, a trial is paused and the searcher may resume it. To
    Ray a paused trial has ended, and a resumed one is another trial with the same number. Its checkpoint lies in its
    own folder, so Ray keeps nothing of it.
    """

    def __init__(self, spec: SearchSpec, log: SearchLog, should_continue: Callable[[int], bool] | None = None) -> None:
        super().__init__()
        self.spec, self.log, self.should_continue = spec, log, should_continue
        costs = [name in COSTS for name in spec.objectives]
        self.rungs = Rungs(spec.budget.rung_tokens, costs)
        # A resumed search has a new scheduler; the log fills its rungs.
        for trial, validation in validations_in_order(log):
            self.rungs.reach(trial.number, validation.tokens, self._values(trial, validation))

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Accept any: there is no single metric."""
        return True

    def on_trial_result(self, controller: TuneController, trial: Trial, result: dict[str, Any]) -> str:
        """Log a report and decide whether the trial continues."""
        if result.get("done") or "report" not in result:
            return TrialScheduler.CONTINUE  # Ray repeats the last report when a function returns
        report, number = json.loads(result["report"]), trial.config["number"]
        before = self.log.state.record(number)
        if before.state in ENDED or before.paused_at_rung:
            return TrialScheduler.CONTINUE  # its workers have not left yet
        if report.get("moved"):
            allow_another_failure(trial)  # the trainable raises next, and that is no failure
            self.log.record("moved", trial=number)
            return TrialScheduler.CONTINUE
        if notice := report.get("notice"):
            self.log.record("notice", trial=number, text=f"T{number}: {notice}")
            return TrialScheduler.CONTINUE
        self.log.record("report", trial=number, **report)
        record = self.log.state.record(number)
        if record.state == "complete" and record.repeats is None and report.get("validation"):
            self._fix_reference(record, record.validations[-1])  # where it is the first, with a single rung
            self._decide(record)  # notes its end, which others are compared with
        if record.state != "running":
            if report.get("replace_actor"):
                # The trainable raises next, and Ray replaces its actor. The trial must not start again there.
                allow_no_failure(trial)
                return TrialScheduler.CONTINUE
            return self._let_go(trial)
        if not report.get("validation") or record.repeats is not None:  # a repeat is trained to its end
            return TrialScheduler.CONTINUE
        self._fix_reference(record, record.validations[-1])
        if self._decide(record):
            return TrialScheduler.CONTINUE
        if self.should_continue is None:
            reason = f"its chance of ending on the front was under {SMALL_CHANCE:.0%} after {record.tokens} tokens"
            self.log.record("end", trial=number, state="pruned", reason=reason)
        else:
            reason = f"after {record.tokens} tokens its expected hypervolume gain was small beside that of other trials"
            self.log.record("end", trial=number, state="paused", reason=reason, cause=PAUSED_AT_RUNG)
        return self._let_go(trial)

    def choose_trial_to_run(self, tune_controller: TuneController) -> Trial | None:
        """The next trial: one that a person requested, else as Ray Tune would choose. At a stop, several workers that
        wait for room are not waited for: with fewer nodes there may never be any."""
        waiting = (trial for trial in tune_controller.get_trials() if trial.status == Trial.PENDING)
        requested = (one for one in waiting if self.log.state.record(one.config["number"]).role in (ADDED, MAY_STOP))
        chosen: Trial | None = next(requested, None) or super().choose_trial_to_run(tune_controller)
        if chosen is None or chosen.config["workers"] == 1 or not self.log.directory.stop_requested:
            return chosen
        record = self.log.state.record(chosen.config["number"])
        if record.state == "running":  # it was, until it lost its place
            self.log.record("end", trial=record.number, state="paused", reason="the search was asked to stop")
        tune_controller.stop_trial(chosen)
        return None

    def _decide(self, trial: TrialRecord) -> bool:
        validation = trial.validations[-1]
        report = trial.number, validation.tokens, self._values(trial, validation)
        if self.should_continue is None:
            return self.rungs.reach(*report) or trial.role in (ADDED, RIVAL)
        # All trials are compared with the baseline, so that it is always trained to its end.
        return self.rungs.note(*report) is None or trial.role in _TO_THE_END or self.should_continue(trial.number)

    def _let_go(self, trial: Trial) -> str:
        """End a trial's work. A single actor is stopped at once. Several workers leave by themselves once the flag file
        is set: workers that are stopped in the middle of a step could not train the next trial."""
        if trial.config["workers"] == 1:
            return TrialScheduler.STOP
        record = self.log.state.record(trial.config["number"])
        if record.state == "pruned" or record.paused_at_rung:
            FlagFile(self.log.directory.trial(record.number) / STOP).set()
        return TrialScheduler.CONTINUE

    def _values(self, trial: TrialRecord, validation: Validation) -> list[float]:
        return trial.values_at(validation, self.spec.objectives)

    def _fix_reference(self, trial: TrialRecord, validation: Validation) -> None:
        """Fix the reference quality, slightly worse than the plain baseline's first: it is known early, and useful
        trials are better. Where there is no baseline, or it has ended before, another trial's first quality serves."""
        missing = [name for name in self.spec.objectives if name not in self.log.state.reference]
        baseline = next((t for t in self.log.state.trials.values() if t.role == "baseline"), None)
        if missing and (trial is baseline or baseline is None or baseline.state in ENDED):
            values = dict(zip(self.spec.objectives, self._values(trial, validation), strict=True))
            self.log.record("reference", values={name: values[name] * BEYOND_THE_FIRST for name in missing})


def validations_in_order(log: SearchLog) -> list[tuple[TrialRecord, Validation]]:
    """All validations of the search's trials in the order of their tokens, in which rungs are filled."""
    pairs = [(trial, validation) for trial in log.state.trials.values() for validation in trial.validations]
    return sorted(pairs, key=lambda pair: pair[1].tokens)
