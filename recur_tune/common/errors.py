"""Exceptions that the command line prints as one sentence: a user's mistake, a disk that fails, a paused search."""


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
