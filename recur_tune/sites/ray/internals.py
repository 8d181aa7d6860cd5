"""Ray's private names that a search needs, which may change without notice.

`command.py` has those that the command line skips. `tests/sites/ray/test_internals.py` fails when one has changed.
"""

from __future__ import annotations

import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recur_tune.sites.ray import command as ray_command

if TYPE_CHECKING:
    from ray.tune.experiment import Trial


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


def optuna_study(search: Any) -> Any:
    """The Optuna study of Ray's OptunaSearch."""
    return search._ot_study


def allow_another_failure(trial: Trial) -> None:
    """Do not count the next failure against the trial."""
    trial.max_failures += 1


def allow_no_failure(trial: Trial) -> None:
    """Do not retry the trial."""
    trial.max_failures = 0


def last_failure(trial: Trial) -> str:
    """Why Ray starts a trial again, in a line; empty where it is the first time."""
    if not trial.error_file or not Path(trial.error_file).exists():
        return ""
    lines = Path(trial.error_file).read_text().rpartition("Failure # ")[2].splitlines()[1:]
    # Ray's own message is the first line; an exception follows the traceback's indented frames.
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    below = lines[frames[-1] + 1 :] if frames else lines
    return next((line[:200] for line in below if line.strip() and not line.startswith(" ")), "no reason given")
