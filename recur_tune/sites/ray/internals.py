"""What Ray does not promise and a search needs: each name of Ray's that may change without notice stands here alone.

Those that its command line goes without stand in `ray_command.py`. `tests/sites/ray/test_internals.py` says which of
them has changed.
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


def optuna_study(search: Any) -> Any:
    """The study that Ray's OptunaSearch asks."""
    return search._ot_study


def allow_another_failure(trial: Trial) -> None:
    """What comes next is none of the trial's own."""
    trial.max_failures += 1


def allow_no_failure(trial: Trial) -> None:
    """Do not try it again."""
    trial.max_failures = 0


def last_failure(trial: Trial) -> str:
    """Why Ray starts a trial again, in a line; empty where it is the first time."""
    if not trial.error_file or not Path(trial.error_file).exists():
        return ""
    lines = Path(trial.error_file).read_text().rpartition("Failure # ")[2].splitlines()[1:]
    # What Ray has to say stands at the top; what Python raised, below the frames of a traceback, which are indented.
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    below = lines[frames[-1] + 1 :] if frames else lines
    return next((line[:200] for line in below if line.strip() and not line.startswith(" ")), "no reason given")
