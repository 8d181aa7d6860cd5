"""Ray's private names that a search needs, which may change without notice.

Those of Ray Tune stand in `ray_tune_adaptations.py`, those that its command line goes without in `command.py`.
`tests/cluster/test_internals.py` says which of them has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, wraps

from recur_tune.cluster import command as ray_command


def set_process_title(title: str) -> None:
    """Set this process's title in `top`, by the function that Ray has for its own processes."""
    from ray._raylet import setproctitle  # type: ignore[attr-defined]

    setproctitle(title)


def print_no_messages() -> None:
    """Keep Ray from printing on stdout, which is for results; `log_to_driver` covers workers alone.

    When a raylet dies, a thread of the driver prints the end of its log there.
    """
    from ray._private import worker

    @wraps(worker.print_to_stdstream)
    def nothing(*_: object, **__: object) -> None:
        pass

    worker.print_to_stdstream = nothing


@contextmanager
def own_process_groups() -> Iterator[None]:
    """Processes that `ray.init` starts meanwhile are in process groups of their own, and what they start with them.

    `timeout` and batch systems send SIGTERM to the whole group of a command. The cluster must outlive that, or trials
    could not save themselves. Ray protects its processes from SIGINT alone; on Linux they end with their driver anyway.
    """
    from ray._private import services

    usual = services.ConsolePopen
    if sys.platform == "linux":
        services.ConsolePopen = partial(usual, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = usual


def drain_command(address: str, node: str, reason: str, seconds: float) -> list[str]:
    """The command that drains a node; it is hidden, and Ray has no function for it."""
    return [
        sys.executable, "-m", ray_command.__name__, "drain-node", f"--address={address}", f"--node-id={node}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION", f"--reason-message={reason}",
        f"--deadline-remaining-seconds={int(seconds)}",
    ]  # fmt: skip
