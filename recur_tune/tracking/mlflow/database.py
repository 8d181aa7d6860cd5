"""The SQLite file in which a results folder keeps its runs: one writer at a time, no WAL, and made anew when damaged.

It lies on whatever storage the results do. There SQLite's own locks may not hold between machines, and a write-ahead
log never does: its index is memory that processes of one machine share. So who writes holds a lease of ours.
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
_DAMAGED = ("malformed", "not a database")  # SQLite's words

REBUILD = "`recur-tune track --rebuild` makes it anew from the searches' logs"


@contextmanager
def one_writer(uri: str) -> Iterator[None]:
    """Be the only one who writes to a database file; a server sees to that itself."""
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
                raise UserError(f"another process is writing to {file}; it is tried again.") from None
        time.sleep(0.1)


def _leave_wal(file: Path) -> None:
    """Somebody may have chosen it, which stays in the file."""
    if not file.exists():
        return
    with file.open("rb") as header:
        if header.read(20)[18:] != _WAL:
            return
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode=DELETE")


def is_damaged(text: str) -> bool:
    """Whether an error's words are those of a database that SQLite cannot read."""
    return any(words in text for words in _DAMAGED)


def set_aside(results: Path) -> Path | None:
    """Put a database and its files where nobody reads them, to be looked at or deleted; None where there is none."""
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
