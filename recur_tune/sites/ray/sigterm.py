"""Ray in a process that has its own mind about SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_sigterm() -> Iterator[None]:
    """To be put around `ray.init` and `ray.shutdown`: whoever handled SIGTERM before handles it afterwards.

    The first takes it for itself, to exit at once, and once more below Python, to print a stack. The second leaves
    nobody there, which Python does not notice.
    """
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(ours) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
