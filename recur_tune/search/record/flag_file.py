"""Flag files: a `threading.Event` between processes, also on different machines that share a file system."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FlagFile:
    """A file that is set while it is not empty.

    Its size counts, not its existence: NFS may answer from a cache for up to a minute whether a file exists, while
    opening a file asks the server. So a process that waits for a flag creates the file first.
    """

    path: Path

    def create(self) -> None:
        """Make the file; a flag that is set already stays set."""
        self.path.open("ab").close()

    def set(self) -> None:
        """Set the flag."""
        try:
            file = self.path.open("ab")
        except PermissionError:  # another user's file, in a folder in which this user may write too
            self.path.unlink()
            file = self.path.open("ab")
        with file:
            file.truncate(1)  # a hole in the file, which fits on a full disk

    def clear(self) -> None:
        """Reset the flag."""
        with self.path.open("ab") as file:
            file.truncate(0)

    def is_set(self) -> bool:
        """Whether the flag is set; False where there is no file."""
        try:
            with self.path.open("rb") as file:
                return os.fstat(file.fileno()).st_size > 0
        except FileNotFoundError:
            return False
