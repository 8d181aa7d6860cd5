"""The folder `slurm` of a search directory: where the login node and the allocations meet.

profile.yaml     the site, as the search was submitted with
job.sh           the script
jobs.jsonl       every job that was submitted for the search, and every allocation that began
token            the Ray cluster's password, for its owner's eyes
head.json        where the Ray cluster is, while there is one
job-7.log        what job 7 said
logs/7/n1/       what Ray said there
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recur_tune.common.files import append_line, reading, write_text
from recur_tune.common.parsing import parse, read_yaml, write_yaml
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.profile import Profile


@dataclass(frozen=True)
class Head:
    """Where a search's Ray cluster is."""

    job: int
    node: str
    address: str  # of Ray's own store, HOST:PORT
    client: int  # a port of the node, as the following
    dashboard: int | None = None
    mlflow: str | None = None  # a socket of the node


@dataclass(frozen=True)
class SlurmFolder:
    """What the jobs of one search share."""

    search: SearchDirectory

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.search.path / "slurm"

    @property
    def exists(self) -> bool:
        """Whether the search was ever submitted to SLURM."""
        return (self.path / "profile.yaml").exists()

    def create(self, profile: Profile) -> None:
        """Make it, or let the search go on with another profile."""
        self.path.mkdir(exist_ok=True)
        write_yaml(self.path / "profile.yaml", profile.model_dump())
        self.renew_token()

    @property
    def profile(self) -> Profile:
        """The site."""
        return parse(Profile, read_yaml(self.path / "profile.yaml"))

    @property
    def token(self) -> Path:
        """The file with the token."""
        return self.path / "token"

    def renew_token(self) -> None:
        """A password that nobody has ever seen; it is born unreadable for others."""
        self.token.unlink(missing_ok=True)
        with open(os.open(self.token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))

    def environment(self) -> dict[str, str]:
        """Variables with which Ray lets a process in; they name the token's file, never the token."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}

    @property
    def head(self) -> Head | None:
        """Where the cluster is now, if it is up."""
        try:
            return Head(**json.loads((self.path / "head.json").read_text()))
        except FileNotFoundError:
            return None

    def publish(self, head: Head) -> None:
        """Say where the cluster is; readers see all of it or nothing."""
        write_text(self.path / "head.json", json.dumps(asdict(head)))

    def withdraw(self) -> None:
        """The cluster is gone."""
        (self.path / "head.json").unlink(missing_ok=True)

    def note(self, job: int, kind: str, **more: Any) -> None:
        """Remember a job: `search` and `grow` were submitted, `begun` is an allocation that has started, `over` the
        last of a search."""
        append_line(
            self.path / "jobs.jsonl", json.dumps({"time": round(time.time(), 3), "job": job, "kind": kind, **more})
        )

    def notes(self) -> Iterator[dict[str, Any]]:
        """All of them, the oldest first."""
        file = self.path / "jobs.jsonl"
        if file.exists():
            with reading(file):
                yield from (json.loads(line) for line in file.read_text().splitlines())

    def jobs(self, *kinds: str) -> list[int]:
        """The numbers of jobs of these kinds, the latest last."""
        return list(dict.fromkeys(note["job"] for note in self.notes() if note["kind"] in kinds))

    def note_submitted(self, job: int, nodes: int, command: Sequence[str] = ("resume",)) -> None:
        """A user has asked for the search, here: what its space names by a relative path is seen from here."""
        self.note(job, "search", by="user", nodes=nodes, cwd=os.getcwd(), command=list(command))

    @property
    def working_directory(self) -> str:
        """Where the user was who last asked for the search."""
        return self._asked("cwd", "/")

    @property
    def command(self) -> list[str]:
        """What an allocation shall run, to be followed by the search's name."""
        return self._asked("command", ["resume"])

    def _asked(self, what: str, default: Any) -> Any:
        return next((note[what] for note in reversed(list(self.notes())) if what in note), default)

    @property
    def allocations_used(self) -> int:
        """How many allocations in a row the search has had since somebody asked for it."""
        used = 0
        for note in self.notes():
            if note["kind"] == "search" and note.get("by") == "user":
                used = 0
            used += note["kind"] == "begun"
        return used

    @property
    def is_over(self) -> bool:
        """Whether the last allocation ended without another to follow."""
        kinds = [note["kind"] for note in self.notes() if note["kind"] in ("search", "begun", "over")]
        return not kinds or kinds[-1] == "over"

    def living_jobs(self) -> list[tuple[str, queue.QueuedJob]]:
        """What SLURM has of this search now, with the kind of each."""
        kinds = {note["job"]: note["kind"] for note in self.notes() if note["kind"] in ("search", "grow")}
        found = queue.find(kinds).values()
        return [(kinds[job.number], job) for job in found if job.is_running or job.is_waiting]

    def log(self, job: int) -> Path:
        """What a job has said."""
        return self.path / f"job-{job}.log"

    def ray_logs(self, job: int, node: str) -> Path:
        """Where Ray's own logs of a node are kept."""
        return self.path / "logs" / str(job) / node


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(it left no log)"
