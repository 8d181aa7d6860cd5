"""Ray's private names that a search needs, which may change without notice.

Those of Ray Tune stand in `ray_tune_adaptations.py`, those that its command line goes without in `command.py`.
`tests/cluster/test_internals.py` says which of them has changed.
"""

from __future__ import annotations

import sys
from functools import wraps

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


def drain_command(address: str, node: str, reason: str, seconds: float) -> list[str]:
    """The command that drains a node; it is hidden, and Ray has no function for it."""
    return [
        sys.executable, "-m", ray_command.__name__, "drain-node", f"--address={address}", f"--node-id={node}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION", f"--reason-message={reason}",
        f"--deadline-remaining-seconds={int(seconds)}",
    ]  # fmt: skip
