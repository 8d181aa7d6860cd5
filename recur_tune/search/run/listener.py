"""Progress that no log can tell: before a search's log is open, and when its driver is stuck.

This stands alone so that the command line can import it without Ray and torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recur_tune.common.errors import Paused


class ProgressListener:
    """Receives progress and ignores it; subclasses override what they need."""

    def stage(self, text: str) -> None:
        """A stage of the preparation begins."""

    def searching(self, confirming: bool = False) -> None:
        """Trials begin, or the repeats of the front."""

    def ending(self) -> None:
        """Every trial has ended or is saved; what is left are the front and the trackers."""

    def pausing(self) -> None:
        """The first Ctrl-C or SIGTERM was heard. Called inside the signal handler: it may only set a flag."""

    def stuck(self, loss: Paused) -> None:
        """The driver is stuck in a call that will not return; report it and end the process."""
