"""SIGTERM in a process that uses Ray: it pauses a search, and our handler survives ray.init and ray.shutdown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from recur_tune.common.errors import Paused

_TOO_EARLY = "SIGTERM came before trials began."


@contextmanager
def paused_by_sigterm() -> Iterator[None]:
    """SIGTERM raises `Paused` while a search is prepared; once trials run, they are asked to save themselves."""

    def pause(number: int, frame: FrameType | None) -> None:
        raise Paused(_TOO_EARLY)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.signal(signal.SIGTERM, pause)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM after `ray.init` or `ray.shutdown`.

    `ray.init` installs handlers that exit at once and print a stack; `ray.shutdown` removes the handler below Python.
    """
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:  # so Ray's handler ends a process
        if ended.code != signal.SIGTERM or not callable(ours):
            raise
        raise Paused(_TOO_EARLY) from None
    finally:
        if callable(ours) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
