"""A site with the three-node SLURM, searches small enough for it, and somebody at its login node."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from recur_tune.common.throttle import Throttled
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.state import SearchState
from recur_tune.sites.slurm.folder import Head, SlurmFolder
from tests import forked
from tests.command import CHECKOUT, Command, own_server
from tests.search.run.searches import ALIKE, make_world, small_spec, write_space
from tests.sites.slurm.mini_slurm import MiniSlurm
from tests.waiting import until


class Site:
    """The shared folder of a site, and the commands that a user types on its login node."""

    def __init__(self, slurm: MiniSlurm, forked_workers: bool = True) -> None:
        """Workers that are forked start sooner; what is preloaded into processes of a node is not in them."""
        self.slurm, self.shared, self._forked_workers = slurm, slurm.shared, forked_workers
        # Whatever people call their folders: nothing of it may run, or come apart, in any shell on the way.
        self.world, self.results = self.shared / "world", self.shared / """it's $(touch pwned); `id` "%j" results"""
        make_world(self.world)
        (self.world / "base" / "model.safetensors").chmod(0o644)  # safetensors makes files private
        self.results.mkdir(mode=0o777)
        self.results.chmod(0o1777)
        self.forkserver = own_server()
        if forked_workers:  # from a socket at a place that every node sees; a disk of its own takes no such link
            self.forkserver = self.shared / "forkserver"
            self.forkserver.hardlink_to(own_server())

    def profile(self, **fields: Any) -> Path:
        """A profile in a file; every node shares the storage, and nobody takes longer than it must."""
        settings = {
            "RECUR_TUNE_CACHE": str(self.shared / "cache"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(CHECKOUT),  # this code, wherever the environment was made
        }  # fmt: skip
        if self._forked_workers:
            settings |= forked.settings(self.forkserver)
        defaults = {
            "time": "1:00:00",  # and nobody is told to hurry, however slow the machine is
            "join": "0:30:00",
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
        fields = {"budget__trials": 3, "budget__tokens": 12_000, "budget__rungs": 2} | ALIKE | changes
        return write_space(path, small_spec(self.world, **fields))

    def type(self, *words: str | Path, user: str | None = None, code: int | None = 0) -> Command:
        """A command of ours on the login node; it has to end with that exit code, or with any where that is None."""
        with self.typing(*words, user=user) as ran:
            assert ran.wait() == code or code is None, f"{words}: {ran.out}{ran.err}"
        assert "Traceback" not in ran.err
        return ran

    def typing(self, *words: str | Path, user: str | None = None) -> Command:
        """A command of ours that has been started on the login node."""
        env = {
            "RECUR_TUNE_RESULTS": str(self.results),
            "RECUR_TUNE_CACHE": str(self.shared / "cache"),
            "HF_HUB_OFFLINE": "1",
        }
        environment = self.slurm.environment(user, env)
        where = {"server": self.forkserver, "cwd": self.shared, "beside": self.slurm.pid("ctl")}
        return Command(*words, env=environment, user=user, **where)

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
        return Submitted(self, name, int(ran.out))


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

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait for something that its jobs bring about."""
        hopeless = Throttled(lambda: not self.jobs_in_queue(), seconds=3.0)  # a question takes three processes
        until(happened, what, self._story, hopeless, pause=0.3)

    @contextmanager
    def held(self, *nodes: str) -> Iterator[None]:
        """A trial on each of these nodes, from its next report on, gets no further until the end of the block.

        So a trial can be met midway that takes no more than seconds, however long that takes which is to meet it.
        """
        held: dict[str, str] = {}

        def all_held() -> bool:
            at_work = [trial.worker.partition(":") for trial in self.state.in_state("running") if trial.worker]
            for node, _, process in at_work:
                if node in nodes and node not in held:
                    held[node] = process
                    self._signal("STOP", node, process)
            return len(held) == len(nodes)

        try:
            self.until(all_held, f"trials on {nodes}")
            yield
        finally:
            for node, process in held.items():
                self._signal("CONT", node, process)

    def _signal(self, name: str, node: str, process: str) -> None:
        with suppress(FileNotFoundError):  # where the node is gone
            self.site.slurm.on_node(node, "kill", f"-{name}", process, check=False)  # or the process

    def _story(self) -> str:
        return self.site.slurm.run("squeue", "--states=all").stdout + self.said

    def until_finished(self) -> None:
        """Until the search has spent its budget and no job of it is left."""
        self.until(lambda: self.state.status == "finished", f"{self.name} finished")
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
