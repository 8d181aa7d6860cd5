"""One wording for everything that should have come from the Hub or a folder and did not."""

from __future__ import annotations

from pathlib import Path


def hub_message(field: str, name: str, error: Exception, otherwise: str) -> str:
    """Why `name` could not be loaded, and what to give instead."""
    reason = " ".join(str(error).split())[:160]
    if Path(name).expanduser().exists():
        return f"{field}: {name} could not be read as a Hugging Face folder ({reason})."
    return (
        f"{field}: {name!r} is neither a local folder nor could it be fetched from the Hub ({reason}); "
        f"check the spelling and the network, or use {otherwise}."
    )
