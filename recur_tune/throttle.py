"""A question that is asked at most every so many seconds."""

from __future__ import annotations

import time
from collections.abc import Callable


class Throttled:
    """A question that is asked at most once in a while; in between the answer is no."""

    def __init__(self, ask: Callable[[], bool], seconds: float) -> None:
        self.ask, self.seconds, self.asked = ask, seconds, -seconds

    def __call__(self) -> bool:
        """The answer, or no while it is too early to ask again."""
        now = time.monotonic()
        if now - self.asked < self.seconds:
            return False
        self.asked = now
        return self.ask()
