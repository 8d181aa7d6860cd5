"""Job steps: Ray on every node of an allocation, one step a node."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from recur_tune.cluster.sigterm import own_sigterm
from recur_tune.common.errors import UserError
from recur_tune.sites.slurm.folder import Head, SlurmFolder, tail

_SECONDS_TO_LEAVE = 30.0

Something = TypeVar("Something")


class EndedEarly(Exception):
    """SLURM ends the job before all of its nodes are up."""


class NodeMissing(UserError):
    """A node did not start, or not in time."""


class Steps:
    """The started nodes; they are stopped when the block ends."""

    def __init__(self, folder: SlurmFolder, job: int, asked_to_end: Callable[[], bool]) -> None:
        self.folder, self.job, self.asked_to_end = folder, job, asked_to_end
        self.patience = folder.profile.join
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for step in self.running.values():
            assert step.stdin is not None
            step.stdin.close()  # which the node notices; a signal to srun would kill Ray at once
        deadline = time.monotonic() + _SECONDS_TO_LEAVE
        for step in self.running.values():
            try:
                step.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                step.kill()

    def start(self, node: str, place: str) -> None:
        """Start Ray on a node, as the `head` or as a worker of the one at HOST:PORT."""
        self.folder.search.welcome(node)
        output = self.folder.ray_logs(self.job, node) / "node.log"
        output.parent.mkdir(parents=True, exist_ok=True)
        step = [*step_on(node), f"--chdir={self.folder.working_directory}"]
        words = [str(self.folder.search.path), str(self.job), node, place]
        program = [sys.executable, "-m", "recur_tune.sites.slurm.node", *words]
        with output.open("ab") as log:
            self.running[node] = subprocess.Popen(
                [*step, *program], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def any_left(self) -> bool:
        """Whether some node is still up."""
        return any(step.poll() is None for step in self.running.values())

    def wait_for_head(self) -> Head:
        """Wait until the head has published its address."""
        return self._wait_for(lambda: self.folder.head, lambda: next(iter(self.running)))

    def wait_for_all(self, head: Head) -> None:
        """Wait until every node has joined the cluster."""
        import ray

        def missing() -> list[str]:
            if not ray.is_initialized():
                try:
                    with own_sigterm():
                        ray.init(head.address, log_to_driver=False, logging_level="ERROR")
                except (ConnectionError, RuntimeError, ValueError):  # this node's Ray is not ready
                    return list(self.running)
            joined = {node["NodeName"] for node in ray.nodes() if node["Alive"]}
            return [node for node in self.running if node not in joined]

        try:
            self._wait_for(lambda: not missing() or None, lambda: missing()[0])
        finally:
            with own_sigterm():
                ray.shutdown()

    def _wait_for(self, ask: Callable[[], Something | None], culprit: Callable[[], str]) -> Something:
        deadline = time.monotonic() + self.patience
        while (answer := ask()) is None:
            ended = [node for node, step in self.running.items() if step.poll() is not None]
            if ended or time.monotonic() > deadline:
                node = ended[0] if ended else culprit()
                said = tail(self.folder.ray_logs(self.job, node) / "node.log")
                what = "could not start Ray" if ended else f"did not join within {self.patience:.0f} s (join)"
                raise NodeMissing(f"node {node} {what}; the end of its log:\n{said}")
            if self.asked_to_end():
                raise EndedEarly
            time.sleep(0.2)
        return answer


def step_on(node: str) -> list[str]:
    """An srun command for one node of the allocation, beside other steps."""
    return ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0", "--cpu-bind=none"]
