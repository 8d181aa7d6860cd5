"""Waiting for what comes true by itself: one patience for all tests, and who gives up says what was waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 900.0  # seconds that nothing should need, however busy the machine is; what hangs fails instead


def until(
    happened: Callable[[], Any],
    what: str,
    told: Callable[[], str] = lambda: "",
    hopeless: Callable[[], Any] = lambda: False,
    pause: float = 0.05,
) -> Any:
    """Ask again and again whether something has happened; the first answer that is not empty.

    Args:
        happened: What is asked.
        what: What is waited for, in words.
        told: What else to say if it does not come.
        hopeless: Whether nobody is left who could make it happen.
        pause: Seconds between two questions.
    """
    deadline = time.monotonic() + PATIENCE
    while not (answer := happened()):
        if hopeless():
            if answer := happened():  # it may have been the last thing that they did
                break
            raise AssertionError(f"{what}: never\n{told()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not in {PATIENCE:.0f} s\n{told()}")
        time.sleep(pause)
    return answer
