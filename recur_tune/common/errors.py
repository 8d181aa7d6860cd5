"""The one exception that a user's mistake, or a world that does not fit the request, turns into."""


class UserError(Exception):
    """What was asked for cannot be done.

    The message is one sentence that names the field, its value and what would be right; the command
    line prints it alone and exits with code 2.
    """

    exit_code = 2


class StorageFault(UserError):
    """A file could not be written or read: the place's fault, never that of the trial that wanted to."""


class Paused(UserError):
    """A search cannot go on here and now, through nobody's mistake; a resume goes on with every trial."""

    exit_code = 75  # what sysexits.h calls a temporary failure
