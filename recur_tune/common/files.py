"""Atomic writes: a reader, or the next start after a crash, never sees half a file. And the cache folder."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from recur_tune.common.errors import StorageFault, UserError

if TYPE_CHECKING:
    import numpy as np

# A full disk, a full quota, an I/O error, a lost network file system, a read-only one.
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS})

PARTIAL = ".partial-"  # a folder being written; one that stays was left by a killed process


def cache_folder() -> Path:
    """Where prepared corpora and downloads lie: $RECUR_TUNE_CACHE, or recur-tune in the user's cache folder."""
    if chosen := os.environ.get("RECUR_TUNE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "recur-tune"


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A new folder to fill, renamed to `target` when the block succeeds; its files move into a `target` that exists.
    After a failure nothing half-written stays.
    """
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=target if target.is_dir() else target.parent))
        try:
            yield partial
            for path in partial.iterdir():
                path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())  # safetensors makes files private
            if target.is_dir():
                for path in sorted(partial.iterdir()):
                    os.replace(path, target / path.name)
            else:
                partial.chmod(0o777 & ~_umask())  # mkdtemp's folders are private
                partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically."""
    with whole_folder(path.parent) as partial:
        (partial / path.name).write_bytes(data)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file."""
    with writing(path):
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a") as file:
                file.write(f"{line}\n")
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)  # half a line would spoil the next one too
            raise


def mapped(path: Path, kind: str) -> np.ndarray:
    """A file of numbers, memory-mapped."""
    import numpy as np

    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r")


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a full disk or a missing permission into a `StorageFault`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # safetensors reports the system's error in a type of its own, by its text alone.
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        culprit = getattr(error, "filename", None) or target
        raise StorageFault(
            f"{target} could not be written ({culprit}: {_reason(error)}); what was there before is untouched."
        ) from error


@contextmanager
def reading(source: Path) -> Iterator[None]:
    """Turn a file that is missing, not allowed or damaged into one sentence."""
    try:
        yield
    except (OSError, EOFError, IndexError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        kind = StorageFault if getattr(error, "errno", None) in _DISK_ERRORS else UserError
        raise kind(f"{source} could not be read ({_reason(error)}); check that it is whole and readable.") from error


def storage_fault(error: BaseException | None) -> StorageFault | None:
    """The disk error in an error or in what caused it; None where there is none."""
    while error is not None:
        if isinstance(error, StorageFault):
            return error
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            return StorageFault(f"{error.filename or 'a file'} could not be written or read ({_reason(error)}).")
        error = error.__cause__ or error.__context__
    return None


def _reason(error: Exception) -> str:
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
        return "the disk is full"
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
