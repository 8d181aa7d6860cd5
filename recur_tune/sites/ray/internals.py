"""What Ray does not promise and a search needs: each name of Ray's that may change without notice stands here alone.

Those of Ray Tune stand in `ray_tune_adaptations.py`, those that its command line goes without in `command.py`.
`tests/sites/ray/test_internals.py` says which of them has changed.
"""

from __future__ import annotations

import sys
from functools import wraps

from recur_tune.sites.ray import command as ray_command


def set_process_title(title: str) -> None:
    """Call this process so in `top`; Ray has the function, since it calls its own processes."""
    from ray._raylet import setproctitle  # type: ignore[attr-defined]

    setproctitle(title)


def print_no_messages() -> None:
    """Let Ray print nothing on stdout, which is for what was asked for; `log_to_driver` is about workers alone.

    When a raylet dies, a thread in every driver prints the last lines of its log there.
    """
    from ray._private import worker

    @wraps(worker.print_to_stdstream)
    def nothing(*_: object, **__: object) -> None:
        pass

    worker.print_to_stdstream = nothing


def drain_command(address: str, node: str, reason: str, seconds: float) -> list[str]:
    """The words that let a node take nothing new; the command is hidden, and has no function beside it."""
    return [
        sys.executable, "-m", ray_command.__name__, "drain-node", f"--address={address}", f"--node-id={node}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION", f"--reason-message={reason}",
        f"--deadline-remaining-seconds={int(seconds)}",
    ]  # fmt: skip
