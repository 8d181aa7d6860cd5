"""A site with the three-node SLURM, searches small enough for it, and somebody at its login node."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from recur_tune.searching.directory import SearchDirectory
from recur_tune.searching.state import SearchState
from recur_tune.slurm.folder import Head, SlurmFolder
from tests.searching.searches import make_world, small_spec, write_space
from tests.slurm.mini_slurm import MiniSlurm

_LIMIT = 300.0  # seconds that nothing here should need; what hangs fails instead


class Site:
    """The shared folder of a site, and the commands that a user types on its login node."""

    def __init__(self, slurm: MiniSlurm) -> None:
        self.slurm, self.shared = slurm, slurm.shared
        # Whatever people call their folders: nothing of it may run, or come apart, in any shell on the way.
        self.world, self.results = self.shared / "world", self.shared / """it's $(touch pwned); `id` "%j" results"""
        make_world(self.world)
        (self.world / "base" / "model.safetensors").chmod(0o644)  # safetensors makes files private
        self.results.mkdir(mode=0o777)
        self.results.chmod(0o1777)

    def profile(self, **fields: Any) -> Path:
        """A profile in a file; every node shares the storage, and nobody takes longer than it must."""
        settings = {"RECUR_TUNE_CACHE": str(self.shared / "cache"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        defaults = {
            "time": "0:10:00",
            "cpus_per_node": 1,
            "storage": str(self.shared),
            "mlflow": False,
            "dashboard": "off",
        }
        path = self.shared / f"site-{time.monotonic_ns()}.yaml"
        path.write_text(yaml.safe_dump({"environment": settings} | defaults | fields))
        return path

    def space(self, **changes: Any) -> Path:
        """A space in a file, whose trials take seconds; longer ones by budget__tokens."""
        path = self.shared / f"space-{time.monotonic_ns()}.yaml"
        fields = {"budget__trials": 3, "budget__tokens": 12_000, "budget__rungs": 2} | changes
        return write_space(path, small_spec(self.world, **fields))

    def type(
        self, *words: str | Path, user: str | None = None, code: int = 0, timeout: float = _LIMIT
    ) -> subprocess.CompletedProcess[str]:
        """A command of ours on the login node; it has to end with that exit code."""
        env = {
            "RECUR_TUNE_RESULTS": str(self.results),
            "RECUR_TUNE_CACHE": str(self.shared / "cache"),
            "HF_HUB_OFFLINE": "1",
        }
        ran = self.slurm.run("recur-tune", *words, user=user, env=env, check=False, timeout=timeout)
        assert ran.returncode == code, f"{words}: {ran.stdout}{ran.stderr}"
        assert "Traceback" not in ran.stderr
        return ran

    @contextmanager
    def occupied(self, *words: str) -> Iterator[None]:
        """Somebody else's job holds these resources."""
        self.slurm.run("salloc", "--no-shell", "--job-name=in-the-way", *words)  # which waits until it has them
        try:
            yield
        finally:
            self.slurm.run("scancel", "--name=in-the-way")

    def submit(self, name: str, profile: Path, space: Path, *words: str, user: str | None = None) -> Submitted:
        """A search goes into the queue."""
        ran = self.type("search", space, "--name", name, "--slurm", profile, *words, user=user)
        return Submitted(self, name, int(ran.stdout))


class Submitted:
    """A search in SLURM, seen from its folder."""

    def __init__(self, site: Site, name: str, job: int) -> None:
        self.site, self.name, self.job = site, name, job
        self.directory = SearchDirectory(site.results / name)
        self.folder = SlurmFolder(self.directory)

    @property
    def state(self) -> SearchState:
        return self.directory.state()

    @property
    def head(self) -> Head:
        head = self.folder.head
        assert head is not None
        return head

    @property
    def said(self) -> str:
        """What all of its jobs have said."""
        return "".join(path.read_text() for path in sorted(self.folder.path.glob("job-*.log")))

    def nodes_at_work(self) -> dict[int, str]:
        """By running trial, the node from which it last reported."""
        running = self.state.in_state("running")
        return {trial.number: trial.worker.partition(":")[0] for trial in running if trial.worker}

    def until(self, happened: Callable[[], bool], what: str, limit: float = _LIMIT) -> None:
        """Wait for something to come true."""
        deadline = time.monotonic() + limit
        while not happened():
            queue = self.site.slurm.run("squeue", "--states=all").stdout
            assert time.monotonic() < deadline, f"{what}: not in {limit:.0f} s\n{queue}{self.said}"
            if not self.jobs_in_queue():  # nobody is left to make it true, if it is not
                assert happened(), f"{what}: never\n{queue}{self.said}"
                return
            time.sleep(0.3)

    def until_finished(self) -> None:
        """Until the search has spent its budget and no job of it is left."""
        # A busy machine may train little in each of several allocations.
        self.until(lambda: self.state.status == "finished", f"{self.name} finished", limit=3 * _LIMIT)
        self.until(lambda: not self.jobs_in_queue(), f"the jobs of {self.name} ended")

    def jobs_in_queue(self) -> list[str]:
        """Its jobs that wait or run."""
        return self.site.slurm.run(
            "squeue", "--noheader", f"--name=recur-tune-{self.name}", "--format=%i"
        ).stdout.split()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event, _ in self.directory.events() if event["kind"] == kind]

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """What the jobs wrote down of themselves."""
        return [
            json.loads(line)
            for line in (self.folder.path / "jobs.jsonl").read_text().splitlines()
            if f'"{kind}"' in line
        ]
