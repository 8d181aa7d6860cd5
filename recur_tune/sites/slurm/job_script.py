"""Job script: profile and search directory -> text for sbatch."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from recur_tune.sites.slurm.profile import Profile, format_slurm_time

LOG = "job-%j.log"  # beside the script: sbatch is told to start there


def render(profile: Profile, name: str, folder: Path, program: str = "job", *words: str) -> str:
    """The script that runs one of our programs in an allocation.

    A user's text is either in a directive, where a profile allows no spaces, quotes or new lines, or in single quotes.
    Only the lines of `setup` are shell code, as the profile has them.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in _directives(profile, name)), ""]
    if profile.setup:
        lines += ["trap 'echo \"recur-tune: the set-up failed at: $BASH_COMMAND\" >&2' ERR", "set -e"]
        lines += [*profile.setup, "set +e", "trap - ERR"]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in profile.variables.items()]
    python = profile.python or shlex.quote(sys.executable)
    # The warning signal goes to the batch shell alone, which exec replaces by our program.
    lines += [f"exec {python} -m recur_tune.sites.slurm.{program} {shlex.join([str(folder), *words])}", ""]
    return "\n".join(lines)


def _directives(profile: Profile, name: str) -> list[str]:
    words = ["gpu" if profile.gpu_request == "gres" else None, profile.gpu_type, str(profile.gpus_per_node)]
    gpus = ":".join(word for word in words if word)
    given = {
        "job-name": f"recur-tune-{name}",
        "output": LOG,
        "open-mode": "append",  # a requeued job appends to its log
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "nodes": profile.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": profile.cpus_per_node,
        "mem": f"{profile.memory_per_node // 2**20}M" if profile.memory_per_node else None,
        profile.gpu_request: gpus if profile.gpus_per_node else None,
        "time": format_slurm_time(profile.time) if profile.time else None,
        "constraint": profile.constraint,
        "reservation": profile.reservation,
        "signal": f"B:USR1@{int(profile.warning)}",
        "no-kill": "",  # a lost node ends its own trials, not the job
        "requeue" if profile.requeue else "no-requeue": "",
    }
    kept = {key: value for key, value in given.items() if value is not None and key not in profile.skip}
    return [*(f"--{key}={value}" if value != "" else f"--{key}" for key, value in kept.items()), *profile.directives]
