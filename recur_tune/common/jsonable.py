"""Numbers that JSON does not have."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """The same with null for every NaN and infinity in it."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
