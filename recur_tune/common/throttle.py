"""What is done at most every so many seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Every:
    """Whether it is time again: yes at most once in so many seconds, the first time at once unless told otherwise."""

    def __init__(self, seconds: float, at_once: bool = True) -> None:
        self.seconds = seconds
        self._last = -math.inf if at_once else time.monotonic()

    def __call__(self) -> bool:
        """Yes or no; the next yes comes so many seconds after this one, whatever is made of it."""
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True


class Throttled:
    """A question that is asked at most once in a while; in between the answer is no."""

    def __init__(self, ask: Callable[[], bool], seconds: float) -> None:
        self.ask, self.due = ask, Every(seconds)

    def __call__(self) -> bool:
        """The answer, or no while it is too early to ask again."""
        return self.due() and self.ask()
