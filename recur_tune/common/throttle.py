"""Throttling: at most once in so many seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Every:
    """True at most once in so many seconds; the first time at once, unless told otherwise."""

    def __init__(self, seconds: float, at_once: bool = True) -> None:
        self.seconds = seconds
        self._last = -math.inf if at_once else time.monotonic()

    def __call__(self) -> bool:
        """Whether it is time again; a yes starts the next interval."""
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True


class Throttled:
    """A check that runs at most once in so many seconds; in between it is False."""

    def __init__(self, ask: Callable[[], bool], seconds: float) -> None:
        self.ask, self.due = ask, Every(seconds)

    def __call__(self) -> bool:
        """The check's result, or False while it is too early to run it again."""
        return self.due() and self.ask()
