"""SIGTERM in a process that uses Ray: our handler survives ray.init and ray.shutdown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM after `ray.init` or `ray.shutdown`.

    `ray.init` installs handlers that exit at once and print a stack; `ray.shutdown` removes the handler below Python.
    """
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(ours) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
