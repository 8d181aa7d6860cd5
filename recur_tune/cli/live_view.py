"""Live view of a search on stderr: a table on a terminal, a line per event elsewhere.

It reads the search's log, so any process that sees its directory can watch it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from recur_tune.cli.display import sparkline, stderr
from recur_tune.cli.next_hour import in_words
from recur_tune.cli.trial_tables import objective_columns, roles, trial_table
from recur_tune.common.units import format_count, format_duration
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.progress import next_hour, seconds_left
from recur_tune.search.record.state import TrialRecord
from recur_tune.search.run.progress_lines import ProgressLines

if TYPE_CHECKING:
    from recur_tune.common.errors import Paused
    from recur_tune.search.record.front import GrowingFront

_STYLES = {
    "running": "bold cyan", "complete": "green", "pruned": "dim", "failed": "red", "infeasible": "yellow",
    "paused": "magenta", "waiting": "dim",
}  # fmt: skip
_FAILURES_SHOWN = 2
_LINES_AROUND_THE_TABLE = 11 + _FAILURES_SHOWN


class LiveView(ProgressLines):
    """Shows a search from its preparation to its end."""

    def __init__(self, directory: SearchDirectory, when_stuck: Callable[[Paused], None] = lambda loss: None) -> None:
        super().__init__(directory, lambda line: stderr.print(line, soft_wrap=True))
        self.when_stuck = when_stuck
        self._grown: dict[int, float] = {}  # by complete trial, the hypervolume with it and those before
        self._growing: GrowingFront | None = None
        self._stage, self._started = "starting …", time.monotonic()
        self._spinner = Spinner("dots")
        self._live = Live(get_renderable=self.__rich__, console=stderr, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if not stderr.is_terminal:
            return super().__enter__()
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if stderr.is_terminal:
            self._live.stop()
        else:
            super().__exit__(kind, error, trace)

    def stage(self, text: str) -> None:
        """What is being prepared."""
        self._stage = text
        if not stderr.is_terminal:
            super().stage(text)

    def stuck(self, loss: Paused) -> None:
        """The search hangs in a call: clear the screen before the last message."""
        self.__exit__(None, None, None)
        self.when_stuck(loss)

    def catch_up(self) -> None:
        """Read new events."""
        for _ in self.news():
            pass

    def time_left(self) -> str:
        """The time left of the search, in words; of a confirmation it is not known."""
        if self.is_confirming:
            return ""
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
        if any(trial.tokens > self.spec.budget.tokens for trial in shown):
            marks.append("a trial's last step is a whole one")
        if len(trials) > rows:
            marks.append(f"{len(trials) - rows} more trials")
        if left_out:
            marks.append(f"no room for the fields {', '.join(left_out)}")
        return Group(table, Text("; ".join(filter(None, marks)), "dim"))

    def _importance(self, trial: TrialRecord) -> tuple[int, int]:
        at_work = trial.state in ("running", "paused") and not trial.paused_at_rung
        group = 0 if at_work else 1 if trial.number in self._on_front else 2
        return group, -trial.number

    def __rich__(self) -> RenderableType:
        self.catch_up()
        at_work = self.state.status == "started"
        elapsed = format_duration(self.state.elapsed(time.time()) if at_work else time.monotonic() - self._started)
        self._spinner.update(text=Text(f" {self.directory.name}  {elapsed}  {self.state.stage or self._stage}"))
        top: list[RenderableType] = [self._spinner]
        if self.after_ctrl_c:
            top.append(Text(self.after_ctrl_c, "bold yellow"))
        if not self.state.trials:
            return Group(*top)
        headline = " ".join(filter(None, [self.headline(), self._sparkline()]))
        lines: list[RenderableType] = [*top, Text(", ".join(filter(None, [headline, self.time_left()])))]
        if self._hypervolume and (hour := next_hour(self.state, self.spec.budget)) and not self.is_confirming:
            lines.append(Text(in_words(hour, self._hypervolume), "dim"))
        if dashboard := self._dashboard():
            lines.append(Text(dashboard, "dim"))
        lines += [Text(f"note: {notice}", "yellow") for notice in self.state.notices[-2:]]
        failed = sorted(self.state.in_state("failed"), key=lambda trial: trial.ended or 0.0)
        for trial in failed[-_FAILURES_SHOWN:]:
            lines.append(Text(f"{trial.name} failed: {trial.reason}", "red", overflow="ellipsis", no_wrap=True))
        return Group(*lines, self.table(max(4, stderr.height - _LINES_AROUND_THE_TABLE), stderr.width))

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
