"""Outlooks of a running search: made in the searcher's own thread, and logged for whoever watches."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import asdict

from recur_tune.common.throttle import Every
from recur_tune.search.propose.outlook import Outlook
from recur_tune.search.record.directory import SearchLog
from recur_tune.search.record.progress import LEAST_TRIALS, ended_trials
from recur_tune.search.run.searcher import OptunaSearcher

_SECONDS_BETWEEN = 60.0  # an outlook takes up to a second, for which a proposal may have to wait


class Outlooks:
    """Logs an outlook now and then, where trials have ended or were validated since the last."""

    def __init__(self, searcher: OptunaSearcher, log: SearchLog) -> None:
        self.searcher, self.log = searcher, log
        self.due = Every(_SECONDS_BETWEEN)
        self.known = 0  # validations and ended trials at the last outlook
        self.waiting: Future[Outlook | None] | None = None

    def catch_up(self) -> None:
        """Log the outlook that is ready; begin the next when it is due."""
        state = self.log.state
        if self.waiting is not None:
            if self.waiting.done():
                found, self.waiting = self.waiting.result(), None
                if found is not None:
                    self.log.record("outlook", **asdict(found))
        elif ended_trials(state) >= LEAST_TRIALS and self._has_reference and self.due():
            known = ended_trials(state) + sum(len(one.validations) for one in state.trials.values())
            if known != self.known:
                self.known, self.waiting = known, self.searcher.look_ahead()

    @property
    def _has_reference(self) -> bool:
        return self.log.state.reference.keys() >= {*self.searcher.spec.objectives}
