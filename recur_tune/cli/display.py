"""Output: progress on stderr, as a live bar on a terminal and as plain lines elsewhere; tables on stdout."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from recur_tune.common.throttle import Every
from recur_tune.common.units import format_count, format_duration

# Texts have users' paths: brackets are no markup, and colons no emoji.
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False)
stdout = Console(markup=False, emoji=False, highlight=False)

_SECONDS_BETWEEN_LINES = 10.0
_BARS = "▁▂▃▄▅▆▇█"


class TokenProgress:
    """Progress counted in tokens, with speed, the latest numbers and the time left."""

    def __init__(self, title: str, total: int | None) -> None:
        self.title, self.total, self.live = title, total, stderr.is_terminal
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=stderr,
            transient=True,
            disable=not self.live,
        )
        self._task: TaskID | None = None
        self._started, self._first = time.monotonic(), 0
        self._due = Every(_SECONDS_BETWEEN_LINES, at_once=False)
        self._announced = False
        self._stage, self._since = "", 0.0
        self._told: set[str] = set()  # stages that are not told again

    def __enter__(self) -> Self:
        self._bar.start()
        self._task = self._bar.add_task(self.title, total=self.total, text="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, text: str) -> None:
        """Show at once what begins and may take a while; a second time only where it took long before."""
        self._end_stage()
        self._stage, self._since = text, time.monotonic()
        if self._task is not None:
            self._bar.update(self._task, text=text)
        if not self.live and text not in self._told:
            stderr.print(f"  {text}")
        self._told.add(text)

    def _end_stage(self) -> None:
        if self._stage and time.monotonic() - self._since > _SECONDS_BETWEEN_LINES:
            self._told.discard(self._stage)
        self._stage = ""

    def say(self, text: str) -> None:
        """Show what happens before the first token."""
        if self._task is not None:
            self._bar.update(self._task, text=text)
        if not self.live and self._due():
            stderr.print(f"  {text}")

    def update(self, tokens: int, note: str = "", important: bool = False) -> None:
        """Show the progress; an important one is printed and stays on the screen."""
        self._end_stage()
        now = time.monotonic()
        if not self._announced:  # speed counts from here, without start-up and resumed tokens
            self._announced, self._started, self._first = True, now, tokens
            if not self.live:
                stderr.print(f"{self.title} …", soft_wrap=True)
        speed = (tokens - self._first) / max(now - self._started, 1e-9)
        of_total = f"/{format_count(self.total)}" if self.total else ""
        rate = f"  {format_count(speed)}/s" if speed else ""
        text = f"{format_count(tokens)}{of_total} tokens{rate}  {note}"
        if self._task is not None:
            self._bar.update(self._task, completed=tokens, text=text)
        if important or (not self.live and self._due()):
            stderr.print(f"  {text}{'' if self.live else self._time_left(tokens, speed)}")

    def _time_left(self, tokens: int, speed: float) -> str:
        """As the bar on a terminal tells it; nothing where it is not known or over."""
        left = (self.total or 0) - tokens
        return f"  about {format_duration(max(1.0, left / speed))} left" if left > 0 and speed else ""

    def aside(self, what: str, tokens: int, total: int) -> None:
        """Show other work that comes first."""
        text = f"{what}: {format_count(tokens)}/{format_count(total)} tokens"
        if self._task is not None:
            self._bar.update(self._task, text=text)
        if not self.live and self._due():
            stderr.print(f"  {text}")


@contextmanager
def at_work(text: str) -> Iterator[None]:
    """Say what takes a while: beside a spinner on a terminal, in a line elsewhere."""
    if not stderr.is_terminal:
        stderr.print(text, soft_wrap=True)
    with stderr.status(text):
        yield


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The latest values as bars between the smallest and the largest of them; nothing where there is no change."""
    shown = list(values)[-width:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    if low == high:
        return ""
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in shown)


def print_table(title: str, rows: dict[str, Any]) -> None:
    """Names and values, one to a line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, str(value))
    if title:
        stdout.print(title, style="bold", soft_wrap=True)  # it has paths, which people copy
    stdout.print(table)


def table_by_name(titles: Sequence[str]) -> Table:
    """A table whose first column, names to copy, is never cut; the others wrap."""
    table = Table(box=None, pad_edge=False)
    for place, title in enumerate(titles):
        table.add_column(title, overflow="fold", no_wrap=place == 0)
    return table


def note(message: str) -> None:
    """Print a remark, which is neither a result nor a failure."""
    stderr.print(f"note: {message}", style="yellow")
