"""An append-only log with one JSON object a line, each with a checksum, which may be read while it is written.

The checksum is the CRC-32 of the line before it. It finds every flipped byte and every damage of up to four bytes in a
row, and others but for one in four billion; it is there against disks, not against people. It is so fast that a log of
gigabytes can be checked at every start. Lines of earlier versions have none; they are whole where they are events.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recur_tune.common.files import append_line, reading

_NUMBER = (int, float)
_MARK = b', "crc": "'  # before the checksum, which ends a line
_END = len(_MARK) + 8 + len(b'"}')
# By kind of event, the fields that a reader needs, with their types.
_FIELDS: dict[str, dict[str, type]] = {
    "search": {"status": str}, "stage": {"text": str}, "notice": {"text": str}, "reference": {"values": dict},
    "trial": {"trial": int, "params": dict, "costs": dict}, "running": {"trial": int}, "moved": {"trial": int},
    "thaw": {"trial": int}, "report": {"trial": int}, "scores": {"trial": int, "scores": dict},
    "end": {"trial": int, "state": str},
    "outlook": {"trials": list, "expected": list, "low": list, "high": list},
}  # fmt: skip
_STATES = {"paused", "complete", "pruned", "failed", "infeasible", "stopped"}  # in which a report or an end leaves one
_STATUSES = {"preparing", "started", "paused", "finished", "stopped"}


@dataclass(frozen=True)
class DamagedLine:
    """A line of the log that is not what was written."""

    offset: int  # of its first byte
    text: bytes
    why: str


def append(file: Path, event: dict[str, Any]) -> None:
    """Append an event."""
    append_line(file, line_of(event))


def line_of(event: dict[str, Any]) -> str:
    """An event as a line, with its checksum."""
    text = json.dumps(event)[:-1]
    return f'{text}{_MARK.decode()}{_checksum(text.encode())}"}}'


def read_from(
    file: Path, offset: int, damaged: Callable[[DamagedLine], None] = lambda line: None
) -> Iterator[tuple[dict[str, Any], int]]:
    """The complete and undamaged lines from a byte offset on, each with the offset after it; `damaged` gets the
    others."""
    with reading(file), file.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            if not line.endswith(b"\n"):
                return
            event, why = _read(line[:-1])
            if event is None:
                damaged(DamagedLine(offset, line[:-1], why))
            offset += len(line)
            if event is not None:
                yield event, offset


def damaged_lines(file: Path) -> list[DamagedLine]:
    """Every damaged line of the log. A line with the right checksum is not parsed."""
    found, offset = [], 0
    with reading(file), file.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n") and not _has_right_checksum(line[:-1]) and (why := _read(line[:-1])[1]):
                found.append(DamagedLine(offset, line[:-1], why))
            offset += len(line)
    return found


def corrected(line: bytes) -> list[dict[str, Any]]:
    """The events of a damaged line in which a single byte is wrong, or in which that byte had been a line break between
    two lines; none where more is wrong. That another line has the same checksum is very unlikely: a line has 255 times
    its length such neighbours, and there are four billion checksums.
    """
    for match in _WHOLE.finditer(line):
        halves = line[: match.end()], line[match.end() + 1 :]
        if all(map(_has_right_checksum, halves)):
            return [event for half in halves if (event := _read(half)[0])]
    if len(line) <= _END:
        return []
    text, end = line[:-_END], line[-_END:]
    right = _MARK + _checksum(text).encode() + b'"}'
    if sum(one != other for one, other in zip(end, right, strict=False)) != 1:
        if not _WHOLE.fullmatch(end):
            return []
        text, right = _with_one_byte_changed(text, int(end[len(_MARK) : -2], 16)), end
    event = _read(text + right)[0]
    return [event] if event else []


def _with_one_byte_changed(text: bytes, wanted: int) -> bytes:
    """The text with this CRC-32 that differs in one byte, or the text itself.

    CRC-32 is linear: a changed byte changes it by bits that depend on the byte's flipped bits and its distance from the
    end alone. So the difference is taken back byte by byte until it is that of a last byte.
    """
    difference = zlib.crc32(text) ^ wanted
    for place in reversed(range(len(text))):
        if difference in _FLIPPED:
            return text[:place] + bytes([text[place] ^ _FLIPPED[difference]]) + text[place + 1 :]
        low = _BY_TOP[difference >> 24]
        difference = ((difference ^ _TABLE[low]) << 8) & 0xFFFFFFFF | low
    return text


_TABLE = [zlib.crc32(bytes([flipped])) ^ zlib.crc32(b"\0") for flipped in range(256)]
_BY_TOP = {value >> 24: flipped for flipped, value in enumerate(_TABLE)}
_FLIPPED = {value: flipped for flipped, value in enumerate(_TABLE) if flipped}
_WHOLE = re.compile(rb', "crc": "[0-9a-f]{8}"}')


def line_number(file: Path, offset: int) -> int:
    """The number, from 1, of the line that begins at a byte offset."""
    with reading(file), file.open("rb") as lines:
        return 1 + lines.read(offset).count(b"\n")


def drop_half_a_line(file: Path) -> None:
    """Remove an incomplete last line, which a process leaves that is killed while it writes."""
    if not file.exists():
        return
    with file.open("rb+") as lines:
        size = end = lines.seek(0, os.SEEK_END)
        while end > 0:  # backwards from the end: a log may be long, a line is not
            start = max(0, end - _BLOCK)
            lines.seek(start)
            place = lines.read(end - start).rfind(b"\n")
            if place >= 0:
                end = start + place + 1
                break
            end = start
        if end < size:
            lines.truncate(end)


_BLOCK = 1 << 16


def _checksum(text: bytes) -> str:
    return f"{zlib.crc32(text):08x}"


def _has_right_checksum(line: bytes) -> bool:
    return line[-_END:].startswith(_MARK) and line[-10:] == f'{_checksum(line[:-_END])}"}}'.encode()


def _read(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The event of a line, or why it is damaged."""
    has_checksum = line[-_END:].startswith(_MARK)
    if has_checksum and not _has_right_checksum(line):
        return None, "its checksum does not match"
    try:
        event = json.loads(line)
    except ValueError:  # also of bytes that are no UTF-8
        return None, "it is no JSON"
    if has_checksum:  # it is as it was written
        del event["crc"]
        return event, ""
    why = _misses(event)
    return (None, why) if why else (event, "")


def _misses(event: Any) -> str:
    """What a line without a checksum lacks to be an event; empty where it lacks nothing. Other kinds, of later
    versions, need no more than a time and a kind."""
    if not isinstance(event, dict):
        return "it is no JSON object"
    if not isinstance(event.get("time"), _NUMBER) or not math.isfinite(event["time"]):
        return "it has no time"
    if not isinstance(event.get("kind"), str):
        return "it has no kind"
    for name, kind in _FIELDS.get(event["kind"], {}).items():
        if not isinstance(event.get(name), kind):
            return f"it has no {name}"
    if not isinstance(event.get("validation") or {}, dict) or (event.get("validation") and "tokens" not in event):
        return "its validation is no validation"
    if event["kind"] in ("report", "end") and event.get("state", "paused") not in _STATES:
        return f"there is no state {event['state']!r}"
    if event["kind"] == "search" and event["status"] not in _STATUSES:
        return f"there is no status {event['status']!r}"
    return ""
