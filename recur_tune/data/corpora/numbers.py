"""Numbers in a corpus's name: `recall:lag=3,values=16`, for corpora that are made on the spot."""

from __future__ import annotations

from collections.abc import Collection

from recur_tune.common.errors import UserError


def read_numbers(options: str, known: Collection[str], corpus: str, example: str) -> dict[str, int]:
    """The fields that the text after the corpus's name sets."""
    chosen: dict[str, int] = {}
    for option in filter(None, options.split(",")):
        field, _, value = option.partition("=")
        if field not in known or not value.isdecimal() or len(value) > 9:
            raise UserError(
                f"corpus: {corpus} does not understand {option!r}; write FIELD=NUMBER with a field of "
                f"{', '.join(known)}, as in {example}."
            )
        chosen[field] = int(value)
    return chosen


def check_number(corpus: str, field: str, value: int, lowest: int, highest: int) -> None:
    """Refuse what is out of range."""
    if not lowest <= value <= highest:
        raise UserError(f"corpus: {corpus}'s {field} is {value}; it must be from {lowest} to {highest}.")
