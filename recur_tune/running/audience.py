"""Whoever wants to know what is going on before the first trial; from then on the log tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recur_tune.errors import Paused
    from recur_tune.training.loop import Report


class Audience:
    """Hears of every step and, unless a subclass says otherwise, makes nothing of it."""

    def stage(self, text: str) -> None:
        """What is being prepared."""

    def pretraining(self, report: Report, tokens: int) -> None:
        """A base of our own is being made."""

    def tokenising(self, corpus: str, tokens: int) -> None:
        """A corpus is being turned into tokens."""

    def searching(self) -> None:
        """Everything is ready."""

    def stuck(self, loss: Paused) -> None:
        """The search is lost in a call that will not return; whoever can should say so and end the process."""
