"""Damage of a search's log in words, for people who read the search or want to continue it."""

from __future__ import annotations

from collections.abc import Sequence

from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import EVENTS, SearchDirectory
from recur_tune.search.record.event_log import damaged_lines, line_number
from recur_tune.search.record.recovery import folders
from recur_tune.search.record.state import SearchState

_MOST_NAMED = 5


def repair_command(directory: SearchDirectory) -> str:
    """The command that mends a search."""
    return f"recur-tune repair {directory.name}"


def damage_notice(directory: SearchDirectory, state: SearchState) -> str:
    """A sentence about the damage that a reader of the log has met; empty where there is none."""
    words = _in_words(directory, state.damaged, state.unknown)
    beside = [] if directory.is_running else sorted(folders(directory).keys() - {*state.trials, *state.repeats})
    if beside and not words:
        words = f"{directory.path / EVENTS} has lost {names(beside)}, of which there are folders"
    return f"{words}; the rest is shown. `{repair_command(directory)}` gives back what it can." if words else ""


def refuse_damaged_log(directory: SearchDirectory, state: SearchState) -> None:
    """Refuse to continue a search with damaged lines in its log: what they said would be done again."""
    found = [(line.offset, line.why) for line in damaged_lines(directory.path / EVENTS)]
    if words := _in_words(directory, found, state.unknown):
        raise UserError(
            f"name: {directory.name} cannot be continued as it is: {words}; `{repair_command(directory)}` tells what "
            "would be lost, and mends it."
        )


def names(numbers: Sequence[int]) -> str:
    """Some trials in words, the first of them by name: `T1, T2 and 7 more`."""
    return _listed([f"T{number}" for number in numbers])


def _in_words(directory: SearchDirectory, damaged: Sequence[tuple[int, str]], unknown: Sequence[int]) -> str:
    words, file = [], directory.path / EVENTS
    if damaged:
        lines, are = ("line", "is") if len(damaged) == 1 else ("lines", "are")
        numbers = [str(line_number(file, offset)) for offset, _ in damaged]
        words.append(f"{lines} {_listed(numbers)} of {file} {are} damaged ({damaged[0][1]})")
    if unknown:
        words.append(f"the first line of {names(unknown)} is missing")
    return ", and ".join(words)


def _listed(words: Sequence[str]) -> str:
    """`a, b and c`; of many the first and the number of the others."""
    more = [f"{len(words) - _MOST_NAMED} more"] if len(words) > _MOST_NAMED else []
    told = [*words[:_MOST_NAMED], *more]
    return " and ".join(filter(None, [", ".join(told[:-1]), *told[-1:]]))
