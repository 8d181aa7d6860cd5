"""An append-only log with one JSON object a line, which may be read while it is written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recur_tune.common.files import append_line, reading


def append(file: Path, event: dict[str, Any]) -> None:
    """Append an event."""
    append_line(file, json.dumps(event))


def read_from(file: Path, offset: int) -> Iterator[tuple[dict[str, Any], int]]:
    """The complete lines from a byte offset on, each with the offset after it."""
    with reading(file), file.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield json.loads(line), offset


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
