"""Parts of a search that live in its driver only."""

from __future__ import annotations

from typing import Any


class LivesInDriver:
    """Pickles to nothing. Ray pickles what it is given in order to restore it later; a search is restored from its
    log instead, and these parts hold open files, locks and signal handlers."""

    def __getstate__(self) -> dict[str, Any]:
        return {}
