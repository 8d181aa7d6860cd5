"""A folder of the cache is made by one process; the others wait for it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock

from recur_tune.common.files import writing

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def made_once(folder: Path, make: Callable[[], None]) -> None:
    """Make a folder of the cache unless it is there, or another process makes it meanwhile."""
    if folder.is_dir():
        return
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(f"{folder}.lock"):
            if not folder.is_dir():
                make()


@contextmanager
def _one_at_a_time(file: str) -> Iterator[None]:
    """Let one process work while the others wait. Where the file system has no locks, as NFS and Lustre may, several do
    the same work, and each puts the same folder there whole."""
    with ExitStack() as held:
        try:
            held.enter_context(FileLock(file))
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
