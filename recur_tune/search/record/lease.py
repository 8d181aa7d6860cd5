"""A lease on a search: one process holds and renews it. It works on NFS and Lustre too.

There file locks may be missing, be valid on one node only, or outlive their process, and a lookup may come from a
cache. So a lease is made of plain files:

lease/7          the seventh lease: its holder, rewritten at every heartbeat, and at last how it ended
lease/current    the number of the latest lease

The process that creates the next file holds the lease: the server lets one of all contenders create it. A lease is
taken over when its holder is known to be dead, or when its term has passed and no heartbeat is seen for a while. Files
are written in place and opened for every read, since opening asks the server. A holder that returns after its term,
from a machine that slept, finds its successor and writes no more.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.files import writing
from recur_tune.search.record.process_identity import ProcessIdentity

HEARTBEAT = 10.0  # seconds between two renewals of a lease
TERM = 60.0  # seconds after which a lease that was not renewed has expired
WATCH = 25.0  # seconds for which an expired lease is watched before it is taken over, since clocks differ

_CURRENT = "current"
_END = 1024  # byte offset at which a lease's file says how it ended; the holder writes before it
_leases: dict[Path, Lease] = {}  # that this process holds


class AlreadyHeld(Exception):
    """Another process holds the lease."""


class Lost(UserError):
    """This process held the lease, and another has taken it over."""


class FolderGone(BaseException):
    """The folder of a held lease was moved or deleted. No `Exception`: Ray Tune handles each of them with further
    writes to that folder, which would make it again.

    Attributes:
        where: The folder that the lease's folder lies in now; None where it was deleted.
    """

    def __init__(self, where: Path | None) -> None:
        super().__init__(where)
        self.where = where


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lease; raises AlreadyHeld where another process does.

    Where its folder is moved or deleted meanwhile, whatever comes of that is raised as FolderGone.
    """
    with writing(folder):
        folder.mkdir(exist_ok=True)
        lease = _acquire(folder)
    key = folder.absolute()
    _leases[key] = lease
    try:
        yield
    except Exception as error:
        lease.check_folder(error)
        raise
    finally:
        del _leases[key]
        lease.release()


def is_held(folder: Path) -> bool:
    """Whether a process holds the lease, as far as is known without waiting."""
    return describe_holder(folder) is not None


def describe_holder(folder: Path) -> str | None:
    """The holder in words, empty for a process of this machine; None where the lease is free."""
    number = _latest(folder)
    while (seen := _read(folder, number)) and not seen.is_alive() and _read(folder, number + 1):
        number += 1  # `current` may be outdated
    if seen is None or not seen.is_alive():
        return None
    here = seen.holder is not None and seen.holder.is_alive()
    return "" if here else f"on {seen.holder or 'another machine'}, last heard of {seen.age:.0f} s ago"


def check(folder: Path) -> None:
    """Raise Lost where this process held the lease and lost it, FolderGone where its folder has gone; a process that
    never held it may continue."""
    lease = _leases.get(folder.absolute())
    if lease is not None:
        lease.check()


def release_dead_lease(folder: Path) -> None:
    """End the lease of a process that was killed on this machine, for machines that cannot know."""
    number = _latest(folder)
    seen = _read(folder, number)
    if seen is not None and not seen.ended and seen.holder is not None and seen.holder.is_alive() is False:
        with suppress(OSError):  # it expires by itself
            _end(str(folder / str(number)), b"dead")


@dataclass(frozen=True)
class _LeaseFile:
    """The file of a lease as it was read."""

    holder: ProcessIdentity | None  # None where the file is still empty
    content: bytes
    age: float  # seconds by this machine's clock

    @property
    def ended(self) -> bool:
        return len(self.content) > _END

    def is_alive(self) -> bool:
        """Whether the lease is valid, as far as is known without waiting."""
        if self.ended:
            return False
        known = self.holder.is_alive() if self.holder else None
        return self.age < TERM if known is None else known


class Lease:
    """A lease of this process, which a thread renews until it is released or lost."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self._path = folder.absolute()
        self._folder = os.open(folder, os.O_RDONLY)  # stays valid when the folder is renamed
        opened = os.fstat(self._folder)
        self._identity = opened.st_dev, opened.st_ino
        self._renewed = _clock()
        self._lost, self._over = False, threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._renew_until_over, name="lease", daemon=True)
        try:
            self.renew()
        except OSError:
            os.close(self._folder)
            raise
        self._thread.start()

    def renew(self) -> None:
        """Write a heartbeat, unless another process has taken over."""
        with self._turn:
            if self._lost:
                return
            try:
                file = os.open(str(self.number), os.O_RDWR, dir_fd=self._folder)
            except FileNotFoundError:  # removed by a later holder
                self._lost = True
                return
            try:
                self._lost = os.fstat(file).st_size > _END or str(self.number + 1) in os.listdir(self._folder)
                if not self._lost:
                    said = json.dumps({"time": time.time(), "holder": asdict(ProcessIdentity.current())})
                    os.pwrite(file, said.encode().ljust(_END), 0)
                    self._renewed = _clock()
            finally:
                os.close(file)

    def check(self) -> None:
        """Raise Lost where there is a successor. Checked before each write: SLURM may requeue a search that lost its
        network."""
        self.check_folder()
        with suppress(OSError):  # storage that fails here fails at the write too, which reports it
            if _clock() - self._renewed > TERM / 2:
                self.renew()
            self._lost |= self._has_successor()
        if self._lost:
            raise Lost("name: another process has taken over this search; this one ends.")

    def check_folder(self, cause: BaseException | None = None) -> None:
        """Raise FolderGone where the folder no longer lies where it lay when the lease was taken."""
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise FolderGone(_place_of(self._folder)) from cause
        except OSError:  # storage that fails here fails at the write too, which reports it
            return
        if (there.st_dev, there.st_ino) != self._identity:
            raise FolderGone(_place_of(self._folder)) from cause

    def _has_successor(self) -> bool:
        """Look for the next lease by opening it, which asks the server."""
        try:
            os.close(os.open(str(self.number + 1), os.O_RDONLY, dir_fd=self._folder))
        except FileNotFoundError:
            return False
        except PermissionError:  # another user's
            pass
        return True

    def release(self) -> None:
        """End the lease."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):  # it expires by itself
            if not self._lost:
                _end(str(self.number), b"released", self._folder)
        os.close(self._folder)

    def _renew_until_over(self) -> None:
        while not self._over.wait(HEARTBEAT) and not self._lost:
            with suppress(OSError):
                self.renew()


def _acquire(folder: Path) -> Lease:
    number = _latest(folder)
    while True:
        seen = _read(folder, number)
        if seen is not None and not _is_over(folder, number, seen):
            raise AlreadyHeld
        try:
            os.close(os.open(folder / str(number + 1), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:  # another process was quicker
            number += 1
            continue
        try:
            lease = Lease(folder, number + 1)
        except OSError:  # a full disk takes a file name, but no content
            with suppress(OSError):
                (folder / str(number + 1)).unlink()
            raise
        if (later := _latest(folder)) > lease.number:  # this process was stopped for so long that its lease is over
            lease.release()
            number = later
            continue
        try:
            _write_current(folder, lease.number)
        except OSError:
            lease.release()
            raise
        with suppress(OSError):  # another user's file; that user finds ours
            _end(str(folder / str(number)), b"taken over")
        for old in _numbers(folder):
            if old < number:
                (folder / str(old)).unlink(missing_ok=True)
        return lease


def _write_current(folder: Path, number: int) -> None:
    with open(os.open(folder / _CURRENT, os.O_CREAT | os.O_WRONLY, 0o666), "wb") as current:
        current.write(f"{number:<20}".encode())


def _is_over(folder: Path, number: int, seen: _LeaseFile) -> bool:
    """Whether a lease may be taken over; an expired one is watched for heartbeats first."""
    if seen.is_alive():
        return False
    if seen.ended or (seen.holder and seen.holder.is_alive() is False):
        return True
    deadline = _clock() + WATCH
    while _clock() < deadline:
        time.sleep(WATCH / 25)
        now = _read(folder, number)
        if now is None or now.ended:
            return True
        if now.content != seen.content:
            return False
    return True


def _read(folder: Path, number: int) -> _LeaseFile | None:
    try:
        with (folder / str(number)).open("rb") as file:
            content, changed = file.read(2 * _END), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    now = time.time()
    try:
        said = json.loads(content[:_END])
        # The holder's clock or the server's may be wrong; where both are, watching the lease shows it.
        return _LeaseFile(ProcessIdentity(**said["holder"]), content, min(abs(now - said["time"]), abs(now - changed)))
    except (ValueError, KeyError, TypeError):
        return _LeaseFile(None, content, abs(now - changed))


def _latest(folder: Path) -> int:
    """The number of the latest lease that is known; a cached list of files may be too old, but never too new."""
    try:
        current = int((folder / _CURRENT).read_bytes())
    except (FileNotFoundError, ValueError):
        current = 0
    return max([current, *_numbers(folder)])


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return []


def _end(lease: str, how: bytes, folder: int | None = None) -> None:
    file = os.open(lease, os.O_WRONLY, dir_fd=folder)
    try:
        os.pwrite(file, how, _END)
    finally:
        os.close(file)


def _place_of(folder: int) -> Path | None:
    """The folder that an open folder lies in now; None where it was deleted, or the system cannot tell."""
    try:
        now = Path(os.readlink(f"/proc/self/fd/{folder}"))
        return now.parent if os.path.samestat(os.stat(now), os.fstat(folder)) else None
    except OSError:
        return None


def _clock() -> float:
    """A monotonic clock that includes sleep where the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
