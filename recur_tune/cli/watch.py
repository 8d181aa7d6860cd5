"""A search as one watches it: a live table on a terminal, a line per event elsewhere. All of it on stderr.

Everything shown comes from the search's log, so a search can be watched from any process that sees its directory.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from recur_tune.cli.display import stderr
from recur_tune.searching.directory import SearchDirectory
from recur_tune.searching.objectives import OBJECTIVES
from recur_tune.searching.state import Event, SearchState, TrialRecord
from recur_tune.units import format_count, format_duration

if TYPE_CHECKING:
    from recur_tune.training.loop import Report

_STYLES = {
    "running": "bold cyan", "complete": "green", "stopped": "dim", "failed": "red", "infeasible": "yellow",
    "paused": "magenta", "waiting": "dim",
}  # fmt: skip
_SECONDS_BETWEEN_LINES = 10.0
_LINES_AROUND_THE_TABLE = 9


class Watch:
    """Shows a search from the moment when it is being prepared until it ends."""

    def __init__(self, directory: SearchDirectory) -> None:
        self.directory, self.spec = directory, directory.spec
        self.state, self._offset = SearchState(), 0
        self._on_front: set[int] = set()
        self._hypervolume: float | None = None
        self._stage, self._started = "starting …", time.monotonic()
        self._said = 0.0
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._spinner = Spinner("dots")
        self._live = Live(get_renderable=self._render, console=stderr, refresh_per_second=4, transient=True)
        self._teller = threading.Thread(target=self._tell_lines, daemon=True)

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
            stderr.print(text, highlight=False)

    def pretraining(self, report: Report) -> None:
        """A base of our own is being made."""
        self._progress(
            f"pretraining the base, once for all searches: {format_count(report.tokens)} tokens, loss {report.loss:.3f}"
        )

    def tokenising(self, corpus: str, tokens: int) -> None:
        """A corpus is being tokenised."""
        self._progress(f"tokenising {corpus}: {format_count(tokens)} tokens")

    def searching(self) -> None:
        """Trials begin."""
        self.stage("searching …")

    def catch_up(self) -> list[Event]:
        """Read what the log has more, and give it."""
        with self._lock:
            events = []
            for event, offset in self.directory.events(self._offset):
                self.state.apply(event)
                events.append(event)
                self._offset = offset
            if any("state" in event or event["kind"] == "reference" for event in events):
                from recur_tune.searching.front import front, search_hypervolume

                best = front(self.state.trials.values(), self.spec.objectives)
                self._on_front = {trial.number for trial in best}
                self._hypervolume = search_hypervolume(self.state, self.spec.objectives)
            return events

    def headline(self) -> str:
        """The search in one line."""
        ended = sum(1 for _ in self.state.in_state("complete", "stopped", "failed"))
        total = f" of {self.spec.budget.trials}" if self.spec.budget.trials else ""
        parts = [f"{ended}{total} trials ended", f"{len(self._on_front)} on the front"]
        if self._hypervolume is not None:
            parts.append(f"hypervolume {self._hypervolume:.4f}")
        return ", ".join(parts)

    def table(self, rows: int) -> Table:
        """Running trials, then the front, then the rest, the newest first; as many as there is room for."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("trial", "state", "tokens"):
            table.add_column(column, no_wrap=True)
        for name in self.spec.objectives:
            table.add_column(OBJECTIVES[name].title, justify="right", no_wrap=True)
        table.add_column("front", justify="center")
        table.add_column("configuration", no_wrap=True, overflow="ellipsis")
        trials = sorted(self.state.trials.values(), key=self._importance)
        for trial in trials[:rows]:
            table.add_row(*self._row(trial), style="dim" if trial.state == "stopped" else None)
        if len(trials) > rows:
            table.add_row(f"… {len(trials) - rows} more")
        return table

    def _importance(self, trial: TrialRecord) -> tuple[int, int]:
        group = 0 if trial.state in ("running", "paused") else 1 if trial.number in self._on_front else 2
        return group, -trial.number

    def _row(self, trial: TrialRecord) -> list[RenderableType]:
        tokens = f"{format_count(trial.tokens)}/{format_count(self.spec.budget.tokens)}"
        values = [trial.value(name) for name in self.spec.objectives]
        shown = [
            "-" if value is None else OBJECTIVES[name].format(value)
            for name, value in zip(self.spec.objectives, values, strict=True)
        ]
        front = Text("●", "bold green") if trial.number in self._on_front else Text("")
        return [
            trial.name, Text(trial.state, _STYLES[trial.state]), tokens, *shown, front,
            Text(describe_trial(trial), "dim"),
        ]  # fmt: skip

    def _render(self) -> RenderableType:
        self.catch_up()
        elapsed = format_duration(time.monotonic() - self._started)
        self._spinner.update(text=Text(f" {self.directory.name}  {elapsed}  {self._stage}"))
        if not self.state.trials:
            return self._spinner
        lines: list[RenderableType] = [self._spinner, Text(self.headline())]
        if self.state.links.get("dashboard"):
            lines.append(Text(f"Ray dashboard {self.state.links['dashboard']}", "dim"))
        lines += [Text(f"note: {notice}", "yellow") for notice in self.state.notices[-2:]]
        return Group(*lines, self.table(max(4, stderr.height - _LINES_AROUND_THE_TABLE)))

    def _progress(self, text: str) -> None:
        self._stage = text
        if not stderr.is_terminal and time.monotonic() - self._said > _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            stderr.print(f"  {text}", highlight=False)

    def _tell_lines(self) -> None:
        while True:
            closing = self._closing.wait(0.5)
            for event in self.catch_up():
                line = self._line(event)
                if line:
                    stderr.print(f"  {line}", highlight=False, soft_wrap=True)
            if closing:
                return

    def _line(self, event: Event) -> str:
        if event["kind"] == "notice":
            return f"note: {event['text']}"
        if event["kind"] == "running":
            trial = self.state.trials[event["trial"]]
            return f"{trial.name} {'goes on' if trial.tokens else 'starts'}: {describe_trial(trial)}"
        if "state" not in event:
            return ""
        trial = self.state.trials[event["trial"]]
        values = [(OBJECTIVES[name], trial.value(name)) for name in self.spec.objectives]
        known = ", ".join(f"{objective.title} {objective.format(value)}" for objective, value in values if value)
        why = f" ({trial.reason})" if trial.reason else ""
        return f"{trial.name} {trial.state}{why}: {known}; {self.headline()}"


def describe_trial(trial: TrialRecord) -> str:
    """What the search decided for a trial, in a line."""
    parts = [f"{trial.role}:"] if trial.role else []
    for name, value in trial.params.items():
        parts.append(
            f"{value}"
            if name == "recurrence"
            else f"{name} {value:.3g}"
            if isinstance(value, float)
            else f"{name} {value}"
        )
    return " ".join(parts)
