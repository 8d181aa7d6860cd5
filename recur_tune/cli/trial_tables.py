"""Trials as text: in one line, or in a table that fits the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from recur_tune.cli.display import note, stdout
from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.state import SearchState, TrialRecord
from recur_tune.search.record.trial_text import chosen_fields, field_text

_IN_TWO_LINES = {
    "recurrence": "recur-\nrence", "window": "win-\ndow", "overlap": "over-\nlap", "bptt_windows": "bptt\nwindows",
    "pooling": "pool-\ning", "embeddings": "embed-\ndings",
}  # fmt: skip


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
    for name in chosen_fields(trials):
        cells = [field_text(trial, name) for trial in trials]
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


def print_trials(trials: Sequence[TrialRecord], objectives: Iterable[str], whole: str) -> None:
    """Trials side by side, what they reached first; the command `whole` tells what there is no room for."""
    names: list[Text | str] = [trial.name for trial in trials]
    table, left_out = trial_table(trials, {"trial": names, **objective_columns(trials, objectives)}, stdout.width)
    stdout.print(table)
    if left_out:
        note(f"{', '.join(left_out)} did not fit in here; `{whole}` has all.")


def find_trial(directory: SearchDirectory, state: SearchState, given: str) -> TrialRecord:
    """A trial by its name or number."""
    digits = given.upper().removeprefix("T")
    if not digits.isdecimal() or int(digits) not in {**state.trials, **state.repeats}:
        raise UserError(
            f"trial: {directory.name} has no trial {given!r}; `recur-tune front {directory.name}` lists the best."
        )
    return state.record(int(digits))


def roles(trials: Iterable[TrialRecord]) -> str:
    """The trials that the sampler did not choose: `roles: T0 baseline, T1 paper, T2 first 1 of the space`."""
    told = (f"{trial.name} {_role_in_words(trial.role)}" for trial in trials if trial.role)
    return f"roles: {words}" if (words := ", ".join(told)) else ""


def _role_in_words(role: str) -> str:
    return f"{role} of the space" if role.startswith("first ") else role


def no_better_than_untrained(trials: Iterable[TrialRecord], objectives: Iterable[str]) -> str:
    """One sentence that names the trials whose quality is no better than before training; empty where all are."""
    qualities = [name for name in objectives if OBJECTIVES[name].kind == "quality"]
    names = [trial.name for trial in trials if any(_is_no_better(trial, name) for name in qualities[:1])]
    if not names:
        return ""
    ended = f"{', '.join(names)} ended no better than before training"
    return f"{ended}; a lower learning rate or more tokens may help."


def _is_no_better(trial: TrialRecord, quality: str) -> bool:
    value, before = trial.value(quality), trial.untrained.get(quality)
    return value is not None and before is not None and value >= before


def objective_columns(trials: Iterable[TrialRecord], objectives: Iterable[str]) -> dict[str, list[Text | str]]:
    """What trials reached, by the objectives' titles in two lines."""
    trials = list(trials)
    columns: dict[str, list[Text | str]] = {}
    for name in objectives:
        objective = OBJECTIVES[name]
        values = [trial.value(name) for trial in trials]
        columns[in_two_lines(objective.title)] = ["-" if value is None else objective.format(value) for value in values]
        before = [trial.untrained.get(name) for trial in trials]
        if any(value is not None for value in before):
            title = "before\ntraining" if "before\ntraining" not in columns else f"{objective.title},\nbefore training"
            columns[title] = ["-" if value is None else objective.format(value) for value in before]
    return columns


def in_two_lines(title: str) -> str:
    """An objective's title for a narrow column."""
    return title.replace(" ", "\n", 1) if " " in title else title.replace("/", "\n/")


def _width(title: str, cells: Iterable[Text | str]) -> int:
    return max(len(cell) for cell in [*title.split("\n"), *cells])
