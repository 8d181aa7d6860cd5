"""The SQLite file of a results folder's runs: one writer at a time, no WAL, rebuilt when damaged.

It may lie on a network file system, where SQLite's locks may not hold between machines and a write-ahead log never
does: its index is shared memory of one machine. So a writer holds a lease of ours.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.files import writing
from recur_tune.search.record import lease
from recur_tune.search.record.tracking_place import FILES

_PREFIX = "sqlite:///"
_LEASE = ".mlflow-lease"
_PATIENCE = 10.0  # seconds for another search to end its delivery
_WAL = b"\2\2"  # in the file's header, at 18
_DAMAGED = ("malformed", "not a database")  # in SQLite's messages

REBUILD = "`recur-tune track --rebuild` rebuilds it from the searches' logs"


@contextmanager
def one_writer(uri: str) -> Iterator[None]:
    """Hold the lease to write to a database file; a server needs none."""
    if not uri.startswith(_PREFIX):
        yield
        return
    file, deadline = Path(uri.removeprefix(_PREFIX)), time.monotonic() + _PATIENCE
    while True:
        try:
            with lease.held(file.parent / _LEASE):
                _leave_wal(file)
                yield
                return
        except lease.AlreadyHeld:
            if time.monotonic() > deadline:
                raise UserError(f"another process is writing to {file}; delivery is retried.") from None
        time.sleep(0.1)


def _leave_wal(file: Path) -> None:
    """Leave WAL mode, which a user may have set and which stays in the file."""
    if not file.exists():
        return
    with file.open("rb") as header:
        if header.read(20)[18:] != _WAL:
            return
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode=DELETE")


def is_damaged(text: str) -> bool:
    """Whether SQLite reports a damaged database."""
    return any(words in text for words in _DAMAGED)


def set_aside(results: Path) -> Path | None:
    """Move a database and its files into a hidden folder; None where there is none."""
    aside = results / f".mlflow-{time.strftime('%Y%m%d-%H%M%S')}"
    found = [path for name in ("mlflow.db", "mlflow.db-journal", "mlflow.db-wal", "mlflow.db-shm", FILES)
             if (path := results / name).exists()]  # fmt: skip
    if not found:
        return None
    with writing(aside):
        aside.mkdir()
        for path in found:
            path.rename(aside / path.name)
    return aside
