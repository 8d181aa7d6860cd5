"""Writing files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recur_tune.errors import UserError


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A fresh folder to fill, which becomes `target` when the block ends well; where `target` exists already, the
    files move into it. After a failure nothing half-written stays.
    """
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target if target.is_dir() else target.parent))
        try:
            yield partial
            if target.is_dir():
                for path in sorted(partial.iterdir()):
                    os.replace(path, target / path.name)
            else:
                partial.chmod(0o777 & ~_umask())  # mkdtemp's folders are private
                partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file by its new content in one step."""
    with whole_folder(path.parent) as partial:
        (partial / path.name).write_text(text)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file."""
    with writing(path), path.open("a") as file:
        file.write(f"{line}\n")


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a full disk or a missing permission into one sentence."""
    try:
        yield
    except Exception as error:
        # safetensors reports the system's error in a type of its own, by its text alone.
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        reason = "the disk is full" if full else getattr(error, "strerror", None) or " ".join(str(error).split())
        culprit = getattr(error, "filename", None) or target
        raise UserError(
            f"{target} could not be written ({culprit}: {reason}); what was there before is untouched."
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
