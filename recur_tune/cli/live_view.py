"""Live view of a search on stderr: a table on a terminal, a line per event elsewhere.

It reads the search's log, so any process that sees its directory can watch it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from recur_tune.cli.display import sparkline, stderr
from recur_tune.cli.trial_tables import describe_trial, objective_columns, roles, trial_table
from recur_tune.common.errors import UserError
from recur_tune.common.units import format_count, format_duration
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.progress import ended_trials, seconds_left
from recur_tune.search.record.state import ENDED, Event, SearchState, TrialRecord
from recur_tune.search.run.listener import ProgressListener

if TYPE_CHECKING:
    from recur_tune.common.errors import Paused
    from recur_tune.search.record.front import GrowingFront

_STYLES = {
    "running": "bold cyan", "complete": "green", "pruned": "dim", "failed": "red", "infeasible": "yellow",
    "paused": "magenta", "waiting": "dim",
}  # fmt: skip
_FAILURES_SHOWN = 2
_LINES_AROUND_THE_TABLE = 9 + _FAILURES_SHOWN


class LiveView(ProgressListener):
    """Shows a search from its preparation to its end."""

    def __init__(self, directory: SearchDirectory, when_stuck: Callable[[Paused], None] = lambda loss: None) -> None:
        self.directory, self.spec, self.when_stuck = directory, directory.spec, when_stuck
        self._log = directory.follow()  # only new events are printed
        self._on_front: set[int] = set()
        self._hypervolume: float | None = None
        self._grown: dict[int, float] = {}  # by complete trial, the hypervolume with it and those before
        self._growing: GrowingFront | None = None
        self._outdated = True  # whether the front has to be computed again
        self._stage, self._started = "starting …", time.monotonic()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._spinner = Spinner("dots")
        self._teller = threading.Thread(target=self._tell_lines, daemon=True)
        self._live = Live(get_renderable=self.__rich__, console=stderr, refresh_per_second=4, transient=True)

    @property
    def state(self) -> SearchState:
        """What the log has led to so far."""
        return self._log.state

    def __enter__(self) -> Self:
        if stderr.is_terminal:
            self._live.start()
        else:
            self._teller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if stderr.is_terminal:
            self._live.stop()
        else:
            self._closing.set()
            self._teller.join()

    def stage(self, text: str) -> None:
        """What is being prepared."""
        self._stage = text
        if not stderr.is_terminal:
            stderr.print(text)

    def searching(self) -> None:
        """Trials begin."""
        self.stage("searching …")

    def stuck(self, loss: Paused) -> None:
        """The search hangs in a call: clear the screen before the last message."""
        self.__exit__(None, None, None)
        self.when_stuck(loss)

    def catch_up(self) -> None:
        """Read new events."""
        for _ in self.news():
            pass

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

    def _judge(self) -> None:
        """Compute the front again, if a trial has ended since."""
        if self._outdated:
            from recur_tune.search.record.front import front, search_hypervolume

            best = front(self.state.trials.values(), self.spec.objectives)
            self._on_front = {trial.number for trial in best}
            self._hypervolume = search_hypervolume(self.state, self.spec.objectives)
            self._outdated = False

    def headline(self) -> str:
        """The search in one line."""
        self._judge()
        if self.state.repeats and any(one.state not in ENDED for one in self.state.repeats.values()):
            done = sum(one.state in ENDED for one in self.state.repeats.values())
            return f"confirming the front: {done} of {len(self.state.repeats)} trainings ended"
        ended = ended_trials(self.state)
        budget = self.spec.budget.trials
        total = f" of {budget}" if budget and ended <= budget else ""  # added trials exceed it
        parts = [f"{ended}{total} trials ended", f"{len(self._on_front)} on the front"]
        if self._hypervolume is not None:
            parts.append(f"hypervolume {self._hypervolume:.4f}")
        return ", ".join(parts)

    def time_left(self) -> str:
        """The time left, in words."""
        left = seconds_left(self.state, self.spec.budget)
        return f"about {format_duration(left)} left" if left else ""

    def table(self, rows: int, width: int) -> RenderableType:
        """Running trials, then the front, then the rest, the newest first; as many as there is room for."""
        self._judge()
        trials = sorted([*self.state.trials.values(), *self.state.repeats.values()], key=self._importance)
        shown = trials[:rows]
        columns: dict[str, list[Text | str]] = {
            "": [Text("●", "bold green") if trial.number in self._on_front else "" for trial in shown],
            "trial": [trial.name for trial in shown],
            "state": [Text(trial.state, _STYLES[trial.state]) for trial in shown],
            f"tokens\nof {format_count(self.spec.budget.tokens)}": [format_count(trial.tokens) for trial in shown],
            **objective_columns(shown, self.spec.objectives),
        }
        if any(trial.workers > 1 for trial in shown):
            columns["work-\ners"] = [str(trial.workers) for trial in shown]
        table, left_out = trial_table(shown, columns, width)
        marks = ["● on the front" if self._on_front else "", roles(shown)]
        if len(trials) > rows:
            marks.append(f"{len(trials) - rows} more trials")
        if left_out:
            marks.append(f"no room for {', '.join(left_out)}")
        return Group(table, Text(", ".join(filter(None, marks)), "dim"))

    def _importance(self, trial: TrialRecord) -> tuple[int, int]:
        at_work = trial.state in ("running", "paused") and not trial.paused_at_rung
        group = 0 if at_work else 1 if trial.number in self._on_front else 2
        return group, -trial.number

    def __rich__(self) -> RenderableType:
        self.catch_up()
        at_work = self.state.status == "started"
        elapsed = format_duration(self.state.elapsed(time.time()) if at_work else time.monotonic() - self._started)
        self._spinner.update(text=Text(f" {self.directory.name}  {elapsed}  {self.state.stage or self._stage}"))
        if not self.state.trials:
            return self._spinner
        headline = " ".join(filter(None, [self.headline(), self._sparkline()]))
        lines: list[RenderableType] = [self._spinner, Text(", ".join(filter(None, [headline, self.time_left()])))]
        if dashboard := self._dashboard():
            lines.append(Text(dashboard, "dim"))
        lines += [Text(f"note: {notice}", "yellow") for notice in self.state.notices[-2:]]
        failed = sorted(self.state.in_state("failed"), key=lambda trial: trial.ended or 0.0)
        for trial in failed[-_FAILURES_SHOWN:]:
            lines.append(Text(f"{trial.name} failed: {trial.reason}", "red", overflow="ellipsis", no_wrap=True))
        return Group(*lines, self.table(max(4, stderr.height - _LINES_AROUND_THE_TABLE), stderr.width))

    def _dashboard(self) -> str:
        from recur_tune.cluster.connection import ray_token

        link = self.state.links.get("dashboard")
        return f"Ray dashboard {link} (it asks for the token in {ray_token()})" if link else ""

    def _sparkline(self) -> str:
        from recur_tune.search.record.front import GrowingFront, reference_point

        objectives, reference = self.spec.objectives, self.state.reference
        if any(objective not in reference for objective in objectives):
            return ""
        if self._growing is None:
            self._growing = GrowingFront(reference_point(reference, objectives))
        new = [trial for trial in self.state.in_state("complete") if trial.number not in self._grown]
        for trial in sorted(new, key=lambda trial: trial.ended or 0.0):
            self._grown[trial.number] = self._growing.add(trial.values(objectives))
        return sparkline(list(self._grown.values()))

    def _tell_lines(self) -> None:
        while True:
            closing = self._closing.wait(0.5)
            for event in self.news():
                line = self._line(event)
                if line:
                    stderr.print(f"  {line}", soft_wrap=True)
            if closing:
                return

    def _line(self, event: Event) -> str:
        if event["kind"] == "notice":
            return f"note: {event['text']}"
        if event["kind"] == "stage":
            return event["text"]
        if event["kind"] == "search":
            return self._dashboard() if event["status"] == "started" else ""
        if event["kind"] == "running":
            trial = self.state.record(event["trial"])
            after = f" again, after: {event['after']}" if "after" in event else f": {describe_trial(trial)}"
            return f"{trial.name} {'goes on' if trial.tokens else 'starts'}{after}"
        if "state" not in event:
            return ""
        trial = self.state.record(event["trial"])
        values = [(OBJECTIVES[name], trial.value(name)) for name in self.spec.objectives]
        known = ", ".join(
            f"{objective.title} {objective.format(value)}" for objective, value in values if value is not None
        )
        why = f" ({trial.reason})" if trial.reason else ""
        return f"{trial.name} {trial.state}{why}: {known}; {self.headline()}"
