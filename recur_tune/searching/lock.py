"""The lock of a search: one process runs it. It is the kernel's, and ends with the process, in whatever way."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock


class Held(Exception):
    """Another process has the lock."""


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Hold the lock, or raise where somebody else does."""
    lock = filelock.FileLock(file)
    try:
        lock.acquire(timeout=1)  # whoever asks whether it is held holds it for a moment
    except filelock.Timeout:
        raise Held from None
    try:
        yield
    finally:
        lock.release()


def is_held(file: Path) -> bool:
    """Whether a process holds the lock. Whoever can read the file may ask, so it is tried by a reader's lock."""
    try:
        lock = file.open("rb")
    except FileNotFoundError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
