"""Trials as text: in one line, or in a table that fits the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from recur_tune.cli.display import note, stdout
from recur_tune.common.errors import UserError
from recur_tune.recurrences.registry import FIELDS, MECHANISMS
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.state import SearchState, TrialRecord

# Columns in this order; on a narrow screen the last are left out.
_TELLING = [name for mechanism in MECHANISMS.values() for name in [*mechanism.spec.model_fields][:2]]
_ORDER = tuple(
    dict.fromkeys(["recurrence", "window", "overlap", "bptt_windows", *_TELLING, "learning_rate", *FIELDS])
)  # fmt: skip
_IN_TWO_LINES = {
    "recurrence": "recur-\nrence", "window": "win-\ndow", "overlap": "over-\nlap", "bptt_windows": "bptt\nwindows",
    "pooling": "pool-\ning", "embeddings": "embed-\ndings",
}  # fmt: skip


def describe_trial(trial: TrialRecord) -> str:
    """A trial's chosen parameters in a line."""
    parts = [f"{trial.role}:"] if trial.role else []
    for name in _fields([trial]):
        parts.append(_text(trial, name) if name == "recurrence" else f"{name} {_text(trial, name)}")
    if trial.workers > 1:
        parts.append(f"on {trial.workers} workers")
    return " ".join(parts)


def trial_table(
    trials: Sequence[TrialRecord], columns: dict[str, list[Text | str]], width: int
) -> tuple[Table, list[str]]:
    """A row per trial: the given columns by their titles, then as much of the configurations as there is room for.

    Gives the fields too that there was no room for.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for title, cells in columns.items():
        width -= _width(title, cells) + 1
        number = title and title not in ("trial", "state")
        table.add_column(title, justify="right" if number else "left", no_wrap=True)
    shown: list[list[Text | str]] = []
    left_out: list[str] = []
    for name in _fields(trials):
        cells = [_text(trial, name) for trial in trials]
        title = _IN_TWO_LINES.get(name) or (name.replace("_", "\n") if len(name) > 8 else name)
        width -= _width(title, cells) + 1
        if width < -1 or left_out:
            left_out.append(name)
        else:
            table.add_column(title, style="dim", no_wrap=True)
            shown.append(cells)
    for row in zip(*columns.values(), *shown, strict=True):
        cells_of_row: tuple[RenderableType, ...] = row
        table.add_row(*cells_of_row)
    return table, left_out


def print_trials(trials: Sequence[TrialRecord], objectives: Iterable[str]) -> None:
    """Trials side by side, what they reached first."""
    names: list[Text | str] = [trial.name for trial in trials]
    table, left_out = trial_table(trials, {"trial": names, **objective_columns(trials, objectives)}, stdout.width)
    stdout.print(table)
    if left_out:
        note(f"{', '.join(left_out)} did not fit in here; --csv and --json have all.")


def find_trial(directory: SearchDirectory, state: SearchState, given: str) -> TrialRecord:
    """A trial by its name or number."""
    digits = given.upper().removeprefix("T")
    if not digits.isdecimal() or int(digits) not in {**state.trials, **state.repeats}:
        raise UserError(
            f"trial: {directory.name} has no trial {given!r}; `recur-tune front {directory.name}` lists the best."
        )
    return state.record(int(digits))


def roles(trials: Iterable[TrialRecord]) -> str:
    """The trials that every search begins with: `T0 baseline, T1 paper`."""
    return ", ".join(f"{trial.name} {trial.role}" for trial in trials if trial.role)


def objective_columns(trials: Iterable[TrialRecord], objectives: Iterable[str]) -> dict[str, list[Text | str]]:
    """What trials reached, by the objectives' titles in two lines."""
    trials = list(trials)
    columns: dict[str, list[Text | str]] = {}
    for name in objectives:
        objective = OBJECTIVES[name]
        values = [trial.value(name) for trial in trials]
        columns[in_two_lines(objective.title)] = ["-" if value is None else objective.format(value) for value in values]
    return columns


def in_two_lines(title: str) -> str:
    """An objective's title for a narrow column."""
    return title.replace(" ", "\n", 1) if " " in title else title.replace("/", "\n/")


def _fields(trials: Iterable[TrialRecord]) -> list[str]:
    """Every field that the search chose for a trial; those in which all agree come last."""
    trials = list(trials)
    found = dict.fromkeys(name for trial in trials for name in trial.params)
    ordered = [name for name in _ORDER if name in found] + [name for name in found if name not in _ORDER]
    agreed = {name for name in found if len({_text(trial, name) for trial in trials}) == 1 < len(trials)}
    return sorted(ordered, key=agreed.__contains__)


def _text(trial: TrialRecord, field: str) -> str:
    value: Any = trial.params.get(field, "")
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _width(title: str, cells: Iterable[Text | str]) -> int:
    return max(len(cell) for cell in [*title.split("\n"), *cells])
