"""Exceptions that the command line prints as one sentence: a user's mistake, a disk that fails, a paused search.

Several mistakes are told together, a sentence in a line each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """The request cannot be done.

    The message is one sentence that names the field, its value and what would be right; the command
    line prints it alone and exits with code 2.
    """

    exit_code = 2


class StorageFault(UserError):
    """A file could not be written or read. The disk failed, not the trial that used it."""


class Paused(UserError):
    """A search cannot continue now, and no user made a mistake; `resume` continues every trial."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class Refusals:
    """Sentences about what is wrong, collected so that a person reads all of them at once; of each field the first.

    A sentence begins with its field and a colon.
    """

    def __init__(self) -> None:
        self._sentences: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._sentences)

    def __str__(self) -> str:
        return "\n".join(self._sentences.values())

    def add(self, sentences: object) -> None:
        """Add what a refusal says."""
        for sentence in str(sentences).splitlines():
            self._sentences.setdefault(sentence.partition(": ")[0], sentence)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Add what is refused in the block, and go on behind it."""
        try:
            yield
        except (UserError, ValueError) as refusal:
            self.add(refusal)
