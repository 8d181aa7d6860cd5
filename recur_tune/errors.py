"""The one exception that a user's mistake, or a world that does not fit the request, turns into."""


class UserError(Exception):
    """What was asked for cannot be done.

    The message is one sentence that names the field, its value and what would be right; the command
    line prints it alone and exits with code 2.
    """

    exit_code = 2
