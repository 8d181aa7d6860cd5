"""The folder `slurm` of a search directory, shared by the login node and the allocations.

profile.yaml     the site, as the search was submitted with
job.sh           the script
jobs.jsonl       every job that was submitted for the search, and every allocation that began
token            the Ray cluster's token, readable by its owner alone
head.json        where the Ray cluster is, while there is one
job-7.log        output of job 7
logs/7/n1/       Ray's logs of its node n1
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recur_tune.common.files import append_line, reading, write_text
from recur_tune.common.parsing import parse, read_yaml, write_yaml
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.profile import Profile

SCRIPT, GUEST_SCRIPT = "job.sh", "grow.sh"  # what sbatch was given


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
    """Files that the jobs of one search share."""

    search: SearchDirectory

    @staticmethod
    def at(search: Path) -> Path:
        """The folder of a search, which need not exist yet."""
        return search / "slurm"

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.at(self.search.path)

    @property
    def exists(self) -> bool:
        """Whether the search was ever submitted to SLURM."""
        return (self.path / "profile.yaml").exists()

    def create(self, profile: Profile) -> None:
        """Create it, or replace the profile."""
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
        """Write a new token; the file is never readable by other users."""
        self.token.unlink(missing_ok=True)
        with open(os.open(self.token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))

    def environment(self) -> dict[str, str]:
        """Variables that authenticate with Ray; they name the token's file, never the token."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}

    @property
    def head(self) -> Head | None:
        """Where the cluster is now, if it is up."""
        try:
            return Head(**json.loads((self.path / "head.json").read_text()))
        except FileNotFoundError:
            return None

    def publish(self, head: Head) -> None:
        """Publish the cluster's addresses, atomically."""
        write_text(self.path / "head.json", json.dumps(asdict(head)))

    def withdraw(self) -> None:
        """Remove the published addresses."""
        (self.path / "head.json").unlink(missing_ok=True)

    def note(self, job: int, kind: str, **more: Any) -> None:
        """Record an event of a job: `search` and `grow` were submitted, `begun` is an allocation that has started,
        `up` one whose nodes have all joined, `over` the last one of a search."""
        append_line(
            self.path / "jobs.jsonl", json.dumps({"time": round(time.time(), 3), "job": job, "kind": kind, **more})
        )

    def notes(self) -> Iterator[dict[str, Any]]:
        """All recorded events, the oldest first."""
        file = self.path / "jobs.jsonl"
        if file.exists():
            with reading(file):
                yield from (json.loads(line) for line in file.read_text().splitlines())

    def jobs(self, *kinds: str) -> list[int]:
        """The numbers of jobs of these kinds, the latest last."""
        return list(dict.fromkeys(note["job"] for note in self.notes() if note["kind"] in kinds))

    def note_submitted(self, job: int, nodes: int, command: Sequence[str] = ("resume",)) -> None:
        """Record a user's submission with its working directory, to which paths of the space are relative."""
        self.note(job, "search", by="user", nodes=nodes, cwd=os.getcwd(), command=list(command))

    @property
    def working_directory(self) -> str:
        """Working directory of the last submission."""
        return self._asked("cwd", "/")

    @property
    def command(self) -> list[str]:
        """The command that an allocation runs, before the search's name."""
        return self._asked("command", ["resume"])

    def _asked(self, what: str, default: Any) -> Any:
        return next((note[what] for note in reversed(list(self.notes())) if what in note), default)

    @property
    def allocations_used(self) -> int:
        """Allocations since the user's last submission."""
        used = 0
        for note in self.notes():
            if note["kind"] == "search" and note.get("by") == "user":
                used = 0
            used += note["kind"] == "begun"
        return used

    def is_up(self, job: int) -> bool:
        """Whether all nodes of a job's present allocation have joined, at any time."""
        kinds = [note["kind"] for note in self.notes() if note["job"] == job and note["kind"] in ("begun", "up")]
        return kinds[-1:] == ["up"]

    @property
    def is_over(self) -> bool:
        """Whether the last allocation ended without another to follow."""
        kinds = [note["kind"] for note in self.notes() if note["kind"] in ("search", "begun", "over")]
        return not kinds or kinds[-1] == "over"

    def living_jobs(self) -> list[tuple[str, queue.QueuedJob]]:
        """The search's jobs that run or wait, with the kind of each."""
        kinds = {note["job"]: note["kind"] for note in self.notes() if note["kind"] in ("search", "grow")}
        found = queue.find(kinds).values()
        return [(kinds[job.number], job) for job in found if job.is_running or job.is_waiting]

    def log(self, job: int) -> Path:
        """The log of a job."""
        return self.path / f"job-{job}.log"

    def ray_logs(self, job: int, node: str) -> Path:
        """Where Ray's own logs of a node are kept."""
        return self.path / "logs" / str(job) / node

    def keep_ray_logs(self, job: int, node: str, logs: Path) -> None:
        """Copy them there, unless the search's folder was moved: nothing is made at its old place."""
        with suppress(OSError):
            if self.path.is_dir():
                shutil.copytree(logs, self.ray_logs(job, node), dirs_exist_ok=True)


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(it left no log)"
