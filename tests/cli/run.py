"""Run a command in this process, as the console script would."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from recur_tune.cli import display
from recur_tune.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def run(*arguments: Any, width: int = 200) -> Outcome:
    """The exit code and what was printed where, on a screen so wide."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["recur-tune", *map(str, arguments)]),
        mock.patch.object(display.stdout, "_width", width),
        mock.patch.object(display.stderr, "_width", width),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    return Outcome(code, out.getvalue(), err.getvalue())
