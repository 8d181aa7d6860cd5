"""Drain: nodes leave a running search; their trials are saved and move to other nodes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection

from recur_tune.cluster.internals import drain_command
from recur_tune.cluster.sigterm import own_sigterm
from recur_tune.search.record.log_follower import LogFollower
from recur_tune.sites.slurm.folder import Head, SlurmFolder

_SECONDS_KEPT_BACK = 20.0  # of the warning time, for Ray to stop


def drain(folder: SlurmFolder, head: Head, nodes: Collection[str], warning: float, hurried: Callable[[], bool]) -> None:
    """Drain these nodes, which have `warning` seconds left, and wait until no trial runs there."""
    seconds = max(5.0, warning - _SECONDS_KEPT_BACK)
    deadline = time.monotonic() + seconds
    for identity in _ray_nodes(head, nodes):
        words = drain_command(head.address, identity, "its allocation ends", seconds)
        subprocess.run(words, capture_output=True)
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


def _trials_on(search: LogFollower, nodes: Collection[str]) -> bool:
    return any(trial.worker.rpartition(":")[0] in nodes for trial in search.state.in_state("running"))
