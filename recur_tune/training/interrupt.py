"""SIGINT and SIGTERM as a request to stop between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stop_requests(on_first: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """A function that tells whether a stop was requested; Ctrl-C after a first request interrupts at once.

    SIGTERM never does: `timeout` sends it twice, to its command and to the command's group, and a process that does not
    stop in time gets SIGKILL.

    `on_first` is called inside the signal handler, whatever the process does then: it may only set a flag.
    """
    asked = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        asked.set()
        on_first()

    # Only the main thread gets signals; in another, as in an actor, its owner decides when to stop.
    in_main = threading.current_thread() is threading.main_thread()
    previous: dict[int, Any] = {}
    if in_main:
        previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
