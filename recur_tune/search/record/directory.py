"""The search directory: everything that is needed to read, resume or move a search.

search.yaml      the spec, with all defaults
search.json      the directory's format, the search's id, the code's version
events.jsonl     the log: one event a line, append-only
state.json       a snapshot of the state, to save readers most of the log
events.damaged   damaged lines that a repair has put aside
study.journal    Optuna's study
knowledge.json   trials and learning curves of earlier searches, after a warm start
trials/7/        a trial's reports.jsonl, its checkpoint while it runs, its model while it is on the front
base/            pretrained copies of preset bases
compiled/        compiled GPU kernels, for all trials
front.*          the front as a table and a picture
confirmed.*      the confirmed front, likewise
mlflow.json      what MLflow has received
requests/        requests to train or to end a trial
stop             flag file: the search is to stop
leaving/n1       flag file: trials are to leave the node n1
lease/           the lease of the process that runs the search
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from recur_tune.common.errors import Paused, StorageFault, UserError
from recur_tune.common.files import reading, whole_folder, write_text, writing
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.config.base_shape import is_preset
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record import event_log, lease
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.log_follower import LogFollower, fingerprint, save_snapshot, whole_log
from recur_tune.search.record.spec import SearchSpec, changes_between, with_units
from recur_tune.search.record.state import Event, SearchState, in_current_terms

SNAPSHOT = "state.json"
FORMAT = 2  # 1 has other names of some states; it is read, and can be resumed
SPEC, IDENTITY, EVENTS, STUDY, WARM_START, STOP, LEAVING, LEASE, MODEL, COMPILED = (
    "search.yaml", "search.json", "events.jsonl", "study.journal", "knowledge.json", "stop", "leaving", "lease",
    "model", "compiled",
)  # fmt: skip


class FolderGone(Paused):
    """The folder of a search was moved or deleted while the search ran."""


def results_folder(chosen: Path | None = None) -> Path:
    """The folder of all searches: as chosen, $RECUR_TUNE_RESULTS, or ./results."""
    folder = (chosen or Path(os.environ.get("RECUR_TUNE_RESULTS") or "results")).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"results: {folder} is a file; give the folder that holds the searches.")
    return folder


def default_name(stem: str) -> str:
    """A search's default name: its space and the time."""
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


@dataclass(frozen=True)
class SearchDirectory:
    """One search on disk."""

    path: Path

    @classmethod
    def create(cls, results: Path, name: str, spec: SearchSpec, warm_start: str = "") -> SearchDirectory:
        """Make a new search, with the text of a warm start if there is one; a name that is taken is refused."""
        path = cls.check_free(results, name)
        identity = {"format": FORMAT, "id": uuid.uuid4().hex, "created": time.time(), "version": code_version()}
        with whole_folder(path) as partial:
            (partial / SPEC).write_text(_with_checksum(dump_spec(spec)))
            (partial / IDENTITY).write_text(json.dumps(identity, indent=2) + "\n")
            (partial / EVENTS).touch()
            (partial / "trials").mkdir()
            if warm_start:
                (partial / WARM_START).write_text(warm_start)
        return cls(path)

    @staticmethod
    def check_free(results: Path, name: str) -> Path:
        """The path of a new search; a name that is taken is refused."""
        path = _path(results, name)
        if path.exists():
            raise UserError(
                f"name: {name!r} is taken in {results}; go on with it by `recur-tune resume {name}`, or choose another."
            )
        return path

    @classmethod
    def open(cls, results: Path, name: str, named: str = "name") -> SearchDirectory:
        """Open an existing search; a format of a later version is refused. A refusal says how it is `named`."""
        path = _path(results, name)
        if not (path / IDENTITY).exists():
            known = [found.name for found in searches_in(results)]
            hint = f"there are: {', '.join(known)}." if known else "there are none yet; `recur-tune search` makes one."
            raise UserError(f"{named}: there is no search {name!r} in {results}; {hint}")
        directory = cls(path)
        found = directory.identity["format"]
        if found > FORMAT:
            raise UserError(
                f"{path} was written by a newer recur-tune (format {found}; this one reads up to {FORMAT}); upgrade it."
            )
        return directory

    @classmethod
    def open_named(cls, results: Path, name: str | None) -> SearchDirectory:
        """Open the search of that name; without a name the latest one."""
        if name is not None:
            return cls.open(results, name)
        found = searches_in(results)
        if not found:
            raise UserError(f"name: there are no searches in {results}; `recur-tune search` makes one.")
        return cls.open(results, found[-1].name)

    @property
    def name(self) -> str:
        """The search's name."""
        return self.path.name

    @property
    def identity(self) -> dict[str, Any]:
        """Format, id, time of creation and the version of the code."""
        with reading(self.path / IDENTITY):
            identity = json.loads((self.path / IDENTITY).read_text())
            if not isinstance(identity, dict) or not isinstance(identity.get("format"), int):
                raise ValueError("it does not say its format")
            return identity

    @property
    def spec(self) -> SearchSpec:
        """The spec of the search."""
        file = self.path / SPEC
        return _parsed_spec(file, file.read_bytes() if file.is_file() else b"")

    def check_change(self, spec: SearchSpec) -> None:
        """Refuse a change of anything but budget, resources and the like, which would make it another search."""
        for field, before, after in changes_between(self.spec, spec):
            raise UserError(
                f"{field}: {self.name} was begun with {before!r} and cannot go on with {after!r}; "
                "start a new search under another name."
            )

    def change_spec(self, spec: SearchSpec) -> None:
        """Change the spec for the next resume; refused while the search runs."""
        with self.hold_lease():
            self.write_spec(spec)

    def write_spec(self, spec: SearchSpec) -> None:
        """The same for the holder of the lease. The space keeps its spelling, by which Optuna recognises it."""
        self.check_change(spec)
        write_text(self.path / SPEC, _with_checksum(dump_spec(spec.model_copy(update={"space": self.spec.space}))))

    def rename(self, name: str) -> SearchDirectory:
        """Rename the search; a name that is taken is refused."""
        path = self.check_free(self.path.parent, name)
        with self.hold_lease(), writing(path):
            self.path.rename(path)
        return SearchDirectory(path)

    def remove(self) -> None:
        """Delete the search; it is hidden first, so that no partly deleted search is ever seen."""
        hidden = self.path.with_name(f".removed-{self.path.name}-{uuid.uuid4().hex[:8]}")
        with self.hold_lease(), writing(self.path):
            self.path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def trial(self, number: int) -> Path:
        """A trial's own folder."""
        return self.path / "trials" / str(number)

    def own_base(self, config: TrialConfig) -> Path:
        """The path of the search's copy of a preset base; each tokenizer has its own."""
        tokenizer = "" if config.tokenizer is None else f"-{quote(config.tokenizer, safe='')}"
        return self.path / "base" / f"{config.base}{tokenizer}"

    def with_own_base(self, config: TrialConfig) -> TrialConfig:
        """The trial with the search's copy of its base, where there is one."""
        own = self.own_base(config) if is_preset(config.base) else None
        return config.model_copy(update={"base": str(own)}) if own and own.is_dir() else config

    def events(self, offset: int = 0) -> Iterator[tuple[Event, int]]:
        """The events from a byte offset of the log on, each with the offset after it; damaged lines are left out."""
        for event, after in event_log.read_from(self.path / EVENTS, offset):
            yield in_current_terms(event), after

    def history(self) -> tuple[list[Event], SearchState]:
        """Every event of the log that can be applied, and the state that they lead to."""
        return whole_log(self.path / EVENTS)

    def fingerprint(self, offset: int) -> str:
        """A digest of the log's bytes before an offset, by which the log is recognised."""
        with reading(self.path / EVENTS):
            return fingerprint(self.path / EVENTS, offset)

    def follow(self, until: int | None = None) -> LogFollower:
        """A follower of the log, with the state at its end or at the offset `until`."""
        return LogFollower(self.path / EVENTS, self.path / SNAPSHOT, until)

    def state(self) -> SearchState:
        """The state at the end of the log."""
        return self.follow().state

    def check_lease(self) -> None:
        """Raise where this process ran the search and another has taken it over, or its folder has gone."""
        lease.check(self.path / LEASE)

    def record(self, kind: str, **fields: Any) -> Event:
        """Append an event to the log; only the holder of the lease does."""
        self.check_lease()
        event: Event = {"time": round(time.time(), 3), "kind": kind, **fields}
        event_log.append(self.path / EVENTS, event)
        return event

    def open_log(self) -> SearchLog:
        """The log for the driver: to append to, with the state."""
        return SearchLog(self, self.state())

    @contextmanager
    def hold_lease(self) -> Iterator[None]:
        """Hold the lease of the search; refused where another process runs it. Whatever goes wrong because its folder
        is moved or deleted meanwhile becomes one sentence."""
        try:
            with lease.held(self.path / LEASE):
                for file in (EVENTS, STUDY):
                    event_log.drop_half_a_line(self.path / file)
                self.withdraw_stop()
                yield
                if not self.stop_requested:  # nobody waits for it any more
                    (self.path / STOP).unlink(missing_ok=True)
        except lease.AlreadyHeld:
            raise self._running_already() from None
        except lease.FolderGone as gone:
            raise self._gone(gone.where) from None

    @property
    def is_running(self) -> bool:
        """Whether a process runs the search."""
        return lease.is_held(self.path / LEASE)

    def release_dead_lease(self) -> None:
        """End the lease of a process that was killed on this machine, so that others need not wait for its term."""
        lease.release_dead_lease(self.path / LEASE)

    def check_idle(self) -> None:
        """Refuse a search that runs."""
        if self.is_running:
            raise self._running_already()

    def _running_already(self) -> UserError:
        elsewhere = f" {words}" if (words := lease.describe_holder(self.path / LEASE)) else ""
        return UserError(
            f"name: {self.name} is running already{elsewhere}; `recur-tune status {self.name}` shows it, "
            f"`recur-tune stop {self.name}` ends it."
        )

    def _gone(self, where: Path | None) -> FolderGone:
        if where is None:
            return FolderGone(f"name: {self.path} was deleted, or moved to another disk, while its search ran.")
        resume = shlex.join(["recur-tune", "resume", where.name, "--results", str(where.parent)])
        return FolderGone(
            f"name: {self.path} was moved to {where} while its search ran; nothing finished is lost, and `{resume}` "
            "continues it there."
        )

    def request_stop(self) -> None:
        """Ask the search to stop, from any machine: trials look for this file."""
        with writing(self.path / STOP):
            FlagFile(self.path / STOP).set()

    def withdraw_stop(self) -> None:
        """Withdraw an earlier request to stop."""
        with writing(self.path / STOP):
            FlagFile(self.path / STOP).clear()

    @property
    def stop_requested(self) -> bool:
        """Whether the search is asked to stop."""
        return FlagFile(self.path / STOP).is_set()

    def ask_to_leave(self, node: str) -> None:
        """Ask the trials on a node to save checkpoints and move to another."""
        (self.path / LEAVING).mkdir(exist_ok=True)
        FlagFile(self.path / LEAVING / node).set()

    def welcome(self, node: str) -> None:
        """Withdraw that: the node stays."""
        (self.path / LEAVING).mkdir(exist_ok=True)
        FlagFile(self.path / LEAVING / node).clear()


@dataclass
class SearchLog:
    """A log that is written, and its state; both always agree."""

    directory: SearchDirectory
    state: SearchState
    next_snapshot: int = 0  # once the log has so many bytes

    def record(self, kind: str, **fields: Any) -> None:
        """Append an event and apply it; save a snapshot now and then."""
        self.state.apply(self.directory.record(kind, **fields))
        size = (self.directory.path / EVENTS).stat().st_size
        if size >= self.next_snapshot:
            self._keep(size)

    def _keep(self, size: int) -> None:
        """Save a snapshot after each fortieth of the log. So a reader reads at most a fortieth, and the cost per line
        stays constant as the log grows."""
        if size >= _LEAST_UNREAD:
            with suppress(StorageFault):  # it only saves time, and the next one may fit
                save_snapshot(self.directory.path / SNAPSHOT, self.directory.path / EVENTS, self.state, size)
        self.next_snapshot = size + max(_LEAST_UNREAD, size // 40)


_LEAST_UNREAD = 1 << 20  # bytes, which are read at once


@lru_cache(maxsize=8)
def _parsed_spec(file: Path, text: bytes) -> SearchSpec:
    """The spec of a text, cached: it is checked at thousands of corners of its space."""
    head, _, rest = text.partition(b"\n")
    if head.startswith(_CHECKED) and head != f"{_CHECKED.decode()}{zlib.crc32(rest):08x}".encode():
        raise UserError(
            f"{file} is damaged, or was changed by hand: its checksum does not match; put it right, and remove its "
            "first line."
        )
    try:
        return parse(SearchSpec, read_yaml(file))
    except StorageFault:
        raise
    except UserError as error:
        raise UserError(f"{file} could not be read: {' '.join(str(error).splitlines())}") from error


_CHECKED = b"# crc32 of the following lines: "


def _with_checksum(text: str) -> str:
    return f"{_CHECKED.decode()}{zlib.crc32(text.encode()):08x}\n{text}"


def searches_in(results: Path) -> list[SearchDirectory]:
    """All searches in a folder, the oldest first."""
    found = [SearchDirectory(path.parent) for path in results.glob(f"[!.]*/{IDENTITY}")]
    return sorted(found, key=_created)


def _created(directory: SearchDirectory) -> float:
    try:
        return directory.identity["created"]
    except (UserError, KeyError):  # damaged, or of a later version; still listed
        return 0.0


def dump_spec(spec: SearchSpec) -> str:
    """A spec as YAML, with the space's own spelling."""
    fields = spec.model_dump(mode="json", exclude_none=True) | {"space": _plain(spec.space)}
    return yaml.safe_dump(with_units(fields), sort_keys=False)


def _plain(value: Any) -> Any:
    """A value without tuples, which YAML lacks; keys stay numbers, which JSON would change."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def code_version() -> str:
    """The installed version of this package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("recur-tune")
    except PackageNotFoundError:  # run from its source
        return "source"


def _path(results: Path, name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UserError(f"name: {name!r} is not a name; use letters, digits, '.', '_' and '-', at most 100 of them.")
    return results / name
