"""Leaving a running search in order: the trials on these nodes save themselves and go elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Collection

from recur_tune.cluster.sigterm import own_sigterm
from recur_tune.searching.following import Following
from recur_tune.slurm.folder import Head, SlurmFolder

_SECONDS_KEPT_BACK = 20.0  # of the warning time, for Ray to go


def drain(folder: SlurmFolder, head: Head, nodes: Collection[str], warning: float, hurried: Callable[[], bool]) -> None:
    """Send nothing new to these nodes, which have `warning` seconds left, and wait until no trial trains there."""
    seconds = max(5.0, warning - _SECONDS_KEPT_BACK)
    deadline = time.monotonic() + seconds
    for identity in _ray_nodes(head, nodes):
        # Ray has a command for it, hidden and without a function beside it.
        options = [
            f"--address={head.address}", f"--node-id={identity}", "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=its allocation ends", f"--deadline-remaining-seconds={int(seconds)}",
        ]  # fmt: skip
        subprocess.run([sys.executable, "-m", "ray.scripts.scripts", "drain-node", *options], capture_output=True)
    for node in nodes:
        folder.search.ask_to_leave(node)
    search = folder.search.follow()
    while _trials_on(search, nodes) and time.monotonic() < deadline and not hurried():
        time.sleep(0.5)
        search.catch_up()


def _ray_nodes(head: Head, nodes: Collection[str]) -> list[str]:
    import ray

    with own_sigterm():
        ray.init(head.address, log_to_driver=False, logging_level="ERROR")
    try:
        return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeName"] in nodes]
    finally:
        with own_sigterm():
            ray.shutdown()


def _trials_on(search: Following, nodes: Collection[str]) -> bool:
    return any(trial.worker.rpartition(":")[0] in nodes for trial in search.state.in_state("running"))
