"""A search's progress in lines of text: a line per event, for files, for pipes and for Python.

It reads the search's log, so any process that sees its directory can watch it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.progress import ended_trials
from recur_tune.search.record.requests import RIVAL
from recur_tune.search.record.state import ENDED, Event, SearchState
from recur_tune.search.record.trial_text import describe_trial
from recur_tune.search.run.listener import ProgressListener

PAUSING = (
    "pausing: each trial saves a checkpoint after its step. Ctrl-C again ends the search at once; each running trial "
    "then loses its steps since its last validation."
)
ENDING = "every trial has ended or is saved, and the front is written. Ctrl-C again leaves out what is not written yet."
SAVING = "pausing: trials save checkpoints …"  # for all who watch, also where another machine asked
_SECONDS_BETWEEN_LOOKS = 0.5


class ProgressLines(ProgressListener):
    """Says a line for each new event of a search, from its preparation to its end.

    Args:
        say: Prints a line; it is called from a thread.
    """

    def __init__(self, directory: SearchDirectory, say: Callable[[str], None]) -> None:
        self.directory, self.spec, self.say = directory, directory.spec, say
        self._log = directory.follow()  # only new events are told
        self._on_front: set[int] = set()
        self._said_to_start: set[int] = set()
        self._hypervolume: float | None = None
        self._outdated = True  # whether the front has to be computed again
        self._closing, self._pausing, self._late = threading.Event(), threading.Event(), threading.Event()
        self._is_ending, self._pause_told = False, False
        self._lock, self._telling = threading.Lock(), threading.Lock()
        self._teller = threading.Thread(target=self._tell_lines, daemon=True)

    @property
    def state(self) -> SearchState:
        """What the log has led to so far."""
        return self._log.state

    def __enter__(self) -> Self:
        self._teller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._teller.join()

    def stage(self, text: str) -> None:
        """What is being prepared, behind what the log has told before it."""
        with suppress(UserError):  # the thread, or the driver, says it
            self._tell_news()
        self.say(text)

    def searching(self, confirming: bool = False) -> None:
        """Trials begin, or the repeats of the front."""
        self.stage("confirming the front …" if confirming else "searching …")

    def ending(self) -> None:
        """Every trial has ended or is saved."""
        self._is_ending = True
        self.stage("writing the front …")

    def pausing(self) -> None:
        """Ctrl-C was pressed; the thread says what it does, since a signal handler may not print."""
        (self._late if self._is_ending else self._pausing).set()

    @property
    def is_pausing(self) -> bool:
        """Whether Ctrl-C was pressed while trials could be paused."""
        return self._pausing.is_set()

    @property
    def after_ctrl_c(self) -> str:
        """What the first Ctrl-C does, as a sentence; empty before it."""
        return PAUSING if self.is_pausing else ENDING if self._late.is_set() else ""

    def news(self) -> Iterator[Event]:
        """New events, one by one, each when the state includes it and none after it."""
        with self._lock:
            try:
                for event in self._log.news():
                    self._outdated |= "state" in event or event["kind"] == "reference"
                    yield event
            except UserError:
                if self.directory.path.is_dir():
                    raise
                # It was moved or deleted; the driver ends with a sentence about that.

    @property
    def is_confirming(self) -> bool:
        """Whether the front is repeated with other seeds."""
        begun = self.state.confirming and self.state.status == "started"
        return begun or any(one.state not in ENDED for one in self.state.repeats.values())

    def headline(self) -> str:
        """The search in one line."""
        self._judge()
        if self.is_confirming:
            trainings = [*self.state.repeats.values()]
            trainings += [trial for trial in self.state.trials.values() if trial.role == RIVAL]
            done = sum(one.state in ENDED for one in trainings)
            return f"confirming the front: {done} of {len(trainings)} trainings ended"
        ended = ended_trials(self.state)
        budget = self.spec.budget.trials
        total = f" of {budget}" if budget and ended <= budget else ""  # added trials exceed it
        parts = [f"{ended}{total} trials ended", f"{len(self._on_front)} on the front"]
        if self._hypervolume is not None:
            parts.append(f"hypervolume {self._hypervolume:.4f}")
        return ", ".join(parts)

    def _judge(self) -> None:
        """Compute the front again, if a trial has ended since."""
        if self._outdated:
            from recur_tune.search.record.front import front, search_hypervolume

            best = front(self.state.trials.values(), self.spec.objectives)
            self._on_front = {trial.number for trial in best}
            self._hypervolume = search_hypervolume(self.state, self.spec.objectives)
            self._outdated = False

    def _tell_lines(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(_SECONDS_BETWEEN_LOOKS)
            self._tell_news()

    def _tell_news(self) -> None:
        with self._telling:
            if self.after_ctrl_c and not self._pause_told:
                self.say(self.after_ctrl_c)
                self._pause_told = True
            for event in self.news():
                if line := self._line(event):
                    self.say(f"  {line}")

    def _line(self, event: Event) -> str:
        if event["kind"] == "notice":
            return f"note: {event['text']}"
        if event["kind"] == "stage":
            return "" if self._pause_told and event["text"] == SAVING else event["text"]
        if event["kind"] == "search":
            return self._dashboard() if event["status"] == "started" else ""
        if event["kind"] == "running":
            trial = self.state.record(event["trial"])
            self._said_to_start.add(event["trial"])
            after = f" again, after: {event['after']}" if "after" in event else f": {describe_trial(trial)}"
            return f"{trial.name} {'goes on' if trial.tokens else 'starts'}{after}"
        if "state" not in event:
            return ""
        trial = self.state.record(event["trial"])
        if trial.state == "paused" and event["trial"] not in self._said_to_start:
            return ""  # Ray started it while the search was already pausing
        values = [(OBJECTIVES[name], trial.value(name)) for name in self.spec.objectives]
        known = ", ".join(
            f"{objective.title} {objective.format(value)}" for objective, value in values if value is not None
        )
        why = f" ({trial.reason})" if trial.reason else ""
        return f"{trial.name} {trial.state}{why}: {known}; {self.headline()}"

    def _dashboard(self) -> str:
        from recur_tune.cluster.connection import ray_token

        link = self.state.links.get("dashboard")
        return f"Ray dashboard {link} (it asks for the token in {ray_token()})" if link else ""
