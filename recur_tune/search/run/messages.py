"""Messages of a trial to the driver: plain values, which become lines of the search's log."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def ending(state: str, reason: str, cause: str = "") -> Message:
    """The message of an end without metrics."""
    return {"state": state, "reason": " ".join(reason.split()), "cause": cause}
