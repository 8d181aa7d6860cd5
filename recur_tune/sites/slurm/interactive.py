"""A search in an interactive allocation, which the user holds already: the same job, started directly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.sites.slurm.allocation import Allocation
from recur_tune.sites.slurm.folder import SlurmFolder, tail
from recur_tune.sites.slurm.steps import step_on


def check_seen(results: Path, allocation: Allocation) -> None:
    """Refuse results that a node of the allocation cannot write to."""
    results.mkdir(parents=True, exist_ok=True)
    for node in allocation.nodes:
        if subprocess.run([*step_on(node), "test", "-w", str(results)], capture_output=True).returncode:
            raise UserError(
                f"results: node {node} cannot write to {results}; give --results on storage that all share."
            )


def run_in(
    folder: SlurmFolder, allocation: Allocation, started: Callable[[], None], pausing: Callable[[], None]
) -> None:  # fmt: skip
    """Run the search until it ends; an interrupt saves the trials, a second one ends them.

    The search runs on the allocation's first node, which may be another machine than this.
    """
    program = [sys.executable, "-m", "recur_tune.sites.slurm.job", str(folder.search.path), "here"]
    folder.note_submitted(allocation.job, len(allocation.nodes))
    with folder.log(allocation.job).open("ab") as log:
        job = subprocess.Popen(
            [*step_on(allocation.first), *program], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C goes to this process, which passes it on
        )  # fmt: skip
    started()
    try:
        job.wait()
    except KeyboardInterrupt:
        pausing()
        folder.search.request_stop()
        try:
            job.wait()
        except KeyboardInterrupt:
            job.terminate()
            job.wait()
            raise
    if job.returncode not in (0, 130):
        said = tail(folder.log(allocation.job))
        raise UserError(f"slurm: the search in job {allocation.job} failed; the end of its log:\n{said}")
