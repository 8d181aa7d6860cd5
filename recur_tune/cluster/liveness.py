"""Liveness of the cluster: a watchdog notices that it is gone, since Ray's own calls would hang.

When Ray's global control store (GCS) dies, every call to it hangs, and after a minute Ray ends the process. So a thread
probes the store's port. The main thread is told and leaves; where it is stuck in a call, the watchdog ends the process.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from recur_tune.common.errors import Paused
from recur_tune.common.throttle import Every

_SECONDS_BETWEEN_PROBES = 2.0
_PATIENCE = 3  # probes in a row without an answer
_SECONDS_TO_LEAVE = 5.0


class ClusterLost(Paused):
    """The cluster of a search is gone; another try may succeed."""


class ClusterGone(BaseException):
    """The same inside Ray Tune, which handles every Exception with a call to the cluster, and would hang."""


class ClusterWatchdog:
    """Probes the cluster that this process is connected to, until the block ends.

    Args:
        on_stuck: Called from a thread when the cluster is gone and the block hangs; it should end the process.
    """

    def __init__(self, on_stuck: Callable[[ClusterLost], None]) -> None:
        import ray

        context = ray.get_runtime_context()
        self.address, self.node = context.gcs_address, context.get_node_id()
        self.on_stuck, self.due = on_stuck, Every(_SECONDS_BETWEEN_PROBES, at_once=False)
        self.without_node = 0
        self.left, self.lost = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._look, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.left.set()

    @property
    def loss(self) -> ClusterLost:
        """The exception to raise outside Ray Tune."""
        return _loss(self.address)

    def check(self) -> None:
        """Raise if the cluster is gone, or this process's node of it."""
        if not self.lost.is_set() and self.due():
            self.without_node = 0 if self._has_node() else self.without_node + 1
        if self.lost.is_set() or self.without_node >= _PATIENCE:
            raise ClusterGone

    def _has_node(self) -> bool:
        import ray

        return any(node["Alive"] and node["NodeID"] == self.node for node in ray.nodes())

    def _look(self) -> None:
        if falls_silent(self.address, self.left):
            self.lost.set()
            if not self.left.wait(_SECONDS_TO_LEAVE):
                self.on_stuck(self.loss)


@contextmanager
def while_connecting(address: str | None, on_stuck: Callable[[ClusterLost], None]) -> Iterator[None]:
    """Probe HOST:PORT while Ray connects: Ray would wait minutes for a store that dies meanwhile.

    A local cluster has no address yet, and `auto` is known to Ray alone: these have Ray's own timeout.
    """
    connected = threading.Event()

    def look() -> None:
        if address and falls_silent(address, connected) and not connected.wait(_SECONDS_TO_LEAVE):
            on_stuck(_loss(address))

    if address and ":" in address:
        threading.Thread(target=look, name="connecting", daemon=True).start()
    try:
        yield
    finally:
        connected.set()


def falls_silent(address: str, left: threading.Event) -> bool:
    """Wait until HOST:PORT stops answering: True; False if the caller leaves before."""
    unanswered = 0
    while unanswered < _PATIENCE:
        if left.wait(_SECONDS_BETWEEN_PROBES):
            return False
        unanswered = 0 if answers(address) else unanswered + 1
    return True


def _loss(address: str) -> ClusterLost:
    return ClusterLost(f"address: the Ray cluster at {address} is gone.")


def answers(address: str) -> bool:
    """Whether HOST:PORT accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True


@contextmanager
def outside_of_ray(watchdog: ClusterWatchdog) -> Iterator[None]:
    """Turn `ClusterGone` into `ClusterLost` outside Ray Tune."""
    try:
        yield
    except ClusterGone:
        raise watchdog.loss from None
