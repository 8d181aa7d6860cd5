"""Whoever wants to know what is going on where no log tells: before it is there, and when nobody writes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recur_tune.common.errors import Paused


class ProgressListener:
    """Hears of every step and, unless a subclass says otherwise, makes nothing of it."""

    def stage(self, text: str) -> None:
        """What is being prepared."""

    def searching(self) -> None:
        """Everything is ready."""

    def stuck(self, loss: Paused) -> None:
        """The search is lost in a call that will not return; whoever can should say so and end the process."""
