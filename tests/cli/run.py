"""Run a command in this process, as the console script would."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from unittest import mock

from recur_tune.cli import display
from recur_tune.cli.main import main
from tests.waiting import until


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def run(*arguments: Any, width: int = 200, ctrl_c: Callable[[str, str], Any] | None = None) -> Outcome:
    """The exit code and what was printed where, on a screen so wide; Ctrl-C is pressed when what is printed so far, on
    stdout and stderr, says so."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        contextlib.nullcontext() if ctrl_c is None else _pressing(lambda: ctrl_c(out.getvalue(), err.getvalue())),
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


@contextlib.contextmanager
def _pressing(when: Callable[[], Any]) -> Iterator[None]:
    """This process gets SIGINT then, or where asking fails; once the block has ended nobody is interrupted any more."""
    over = threading.Event()

    def press() -> None:
        try:
            until(lambda: over.is_set() or when(), "what is to be interrupted")
        finally:
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as finger:
        pressed = finger.submit(press)
        try:
            yield
        finally:
            over.set()
        pressed.result()
