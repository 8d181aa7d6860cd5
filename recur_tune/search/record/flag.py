"""A flag: a file by which one process asks something of others, on whatever machine.

It is raised by its size, not by being there: whether a file is there NFS may answer from a cache for up to a minute,
while opening a file asks the server. So who waits for a flag lays it out first.
"""

from __future__ import annotations

import os
from pathlib import Path


def lay_out(flag: Path) -> None:
    """Let the file be there; what somebody has asked already stays."""
    flag.open("ab").close()


def lower(flag: Path) -> None:
    """Nothing is asked, or no longer."""
    with flag.open("ab") as file:
        file.truncate(0)


def put_up(flag: Path) -> None:
    """Ask."""
    try:
        file = flag.open("ab")
    except PermissionError:  # another user's file, in a folder that may be ours as well
        flag.unlink()
        file = flag.open("ab")
    with file:
        file.truncate(1)  # a hole, for which a full disk has room


def is_up(flag: Path) -> bool:
    """Whether somebody asks."""
    try:
        with flag.open("rb") as file:
            return os.fstat(file.fileno()).st_size > 0
    except FileNotFoundError:
        return False
