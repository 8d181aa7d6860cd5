"""Ray, with this process as its driver."""

from __future__ import annotations

import signal
import threading
from typing import Any


def be_driver(address: str, **options: Any) -> Any:
    """What `ray.init` gives, but SIGTERM stays whose it was.

    Ray takes it for itself, to exit at once, and once more below Python, to print a stack; who asked for it before
    has a search to save.
    """
    import ray

    ours = signal.getsignal(signal.SIGTERM)
    try:
        return ray.init(address, **options)
    finally:
        if callable(ours) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
