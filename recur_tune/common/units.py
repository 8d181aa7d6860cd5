"""Units: `500k` tokens, `16GiB` of memory, parsed and formatted."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

_COUNT_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12, "p": 10**15}
_SIZE_SUFFIXES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50,
}  # fmt: skip
_BEYOND_REASON = 1e30
_DIGITS = 5  # significant digits on screens; logs have all
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_count(text: str | int | float) -> int:
    """`500k` -> 500000, `2.5M` -> 2500000, `1e6` -> 1000000."""
    return _parse(text, _COUNT_SUFFIXES, "a count such as 500k or 20M")


def parse_size(text: str | int | float) -> int:
    """`16GiB` -> 17179869184, `2GB` -> 2000000000. A number is bytes, but text has to name a unit."""
    if isinstance(text, str) and (bare := _bare_number(text)):
        raise ValueError(f"has no unit; write {bare}GiB or {bare}MB")
    return _parse(text, _SIZE_SUFFIXES, "a size such as 16GiB or 800MB")


def parse_duration(text: str | int | float) -> float:
    """`90s` -> 90, `30m` -> 1800, `8h` -> 28800, `1h30m` -> 5400. A number is seconds, but text has to name a unit."""
    if isinstance(text, str) and (bare := _bare_number(text)):
        raise ValueError(f"has no unit; write {bare}s, {bare}m or {bare}h")
    stripped = str(text).strip().lower()
    if re.fullmatch(r"\d+(?:\.\d*)?", stripped):
        return float(stripped)
    if not re.fullmatch(r"(?:\d+(?:\.\d*)?\s*[smhd]\s*)+", stripped):
        raise ValueError("is not a duration such as 90s, 30m or 8h")
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)\s*([smhd])", stripped))


def _bare_number(text: str) -> str:
    """The text of a number above 0 without a unit; empty for anything else."""
    stripped = text.strip()
    is_number = re.fullmatch(r"\d+(\.\d*)?(e[+-]?\d+)?", stripped.lower())
    return stripped if is_number and 0 < float(stripped) < _BEYOND_REASON else ""


def _parse(text: str | int | float, suffixes: dict[str, int], wanted: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([a-z]*)\s*", str(text).replace("_", "").lower())
    if not match or match[2] not in suffixes:
        raise ValueError(f"is not {wanted}")
    # Decimal: a float would round 2.3M and large counts.
    number = Decimal(match[1]) * suffixes[match[2]]
    if number.adjusted() > 30:
        raise ValueError(f"is not {wanted}")
    return int(number.to_integral_value())


def format_count(number: float) -> str:
    """1234567 -> `1.23M`."""
    return _format(number, 1000, ("", "k", "M", "G", "T", "P"))


def format_size(number: float) -> str:
    """2**31 -> `2 GiB`."""
    return _format(number, 1024, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"))


def exact_size(number: float) -> str | float:
    """A size to be read again, to the last byte: 2**31 -> `2GiB`; a part of a byte stays a number."""
    if number != int(number):
        return number
    for suffix, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number % unit == 0:
            return f"{int(number // unit)}{suffix}"
    return f"{int(number)}B"


def format_duration(seconds: float) -> str:
    """5400 -> `1h30m`, 75 -> `1m15s`."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    first = next((index for index, (number, _) in enumerate(parts) if number), 3)
    shown = parts[first : first + 2]
    return "".join(f"{number}{unit}" for number, unit in shown if number or (unit == "s" and first == 3))


def format_seconds(seconds: float) -> str:
    """0.0123 -> `12.3 ms`."""
    unit, factor = next(((unit, f) for unit, f in (("s", 1.0), ("ms", 1e3)) if seconds * f >= 1), ("µs", 1e6))
    return f"{seconds * factor:.3g} {unit}"


def _format(number: float, step: int, suffixes: tuple[str, ...]) -> str:
    """Three digits in the largest unit of which there is at least one."""
    power = 0
    while abs(number) >= step - 0.5 and power < len(suffixes) - 1:
        number, power = number / step, power + 1
    return f"{number:.0f}{suffixes[power]}" if abs(number) >= 99.95 else f"{number:.3g}{suffixes[power]}"


def counted(number: float, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def rounded(value: float) -> float:
    """A number rounded to the digits on screens."""
    return float(f"{value:.{_DIGITS}g}")


class Unit(NamedTuple):
    """How numbers of one kind are written and read.

    Attributes:
        format: A number as people read it.
        parse: What people write, as a number.
        is_binary: Whether a thousand is 1024.
    """

    format: Callable[[float], str]
    parse: Callable[[Any], int]
    is_binary: bool = False


COUNT, BYTES = Unit(format_count, parse_count), Unit(format_size, parse_size, is_binary=True)
