"""Numbers as people write them: `500k` tokens, `16GiB` of memory."""

from __future__ import annotations

import re

_COUNT_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_SIZE_SUFFIXES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_count(text: str | int | float) -> int:
    """`500k` -> 500000, `2.5M` -> 2500000, `1e6` -> 1000000."""
    return _parse(text, _COUNT_SUFFIXES, "a count such as 500k or 20M")


def parse_size(text: str | int | float) -> int:
    """`16GiB` -> 17179869184, `2GB` -> 2000000000; a bare number is bytes."""
    return _parse(text, _SIZE_SUFFIXES, "a size such as 16GiB or 800MB")


def _parse(text: str | int | float, suffixes: dict[str, int], wanted: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([a-z]*)\s*", str(text).replace("_", "").lower())
    if isinstance(text, bool) or not match or match[2] not in suffixes:
        raise ValueError(f"is not {wanted}")
    # Decimal text such as 2.3M is exact in a float only by luck, so round rather than truncate.
    return round(float(match[1]) * suffixes[match[2]])


def format_count(number: float) -> str:
    """1234567 -> `1.23M`."""
    for suffix, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= unit:
            return f"{number / unit:.3g}{suffix}"
    return f"{number:.3g}"


def format_size(number: float) -> str:
    """2**31 -> `2 GiB`."""
    for suffix, unit in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(number) >= unit:
            return f"{number / unit:.3g} {suffix}"
    return f"{number:.0f} B"
