"""Requeue: the next allocation of a search, requested by the job that ends or by a node that is left of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from recur_tune.cluster.liveness import answers
from recur_tune.common.errors import UserError
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.folder import SCRIPT, SlurmFolder

_SECONDS_BETWEEN_POLLS = 3.0


def requeue_or_resubmit(folder: SlurmFolder, job: int, may_requeue: bool) -> bool:
    """Request another allocation, if allowed; True where this job itself is requeued."""
    profile, by_hand = folder.profile, f"`recur-tune resume {folder.search.name} --slurm` continues it"
    if not may_requeue:
        folder.note(job, "over")
        say(f"the allocation ends; {by_hand}.")
    elif folder.allocations_used >= profile.allocations:
        folder.note(job, "over")
        say(f"its {profile.allocations} allocations in a row are used up (allocations); {by_hand}.")
    elif profile.requeue and queue.requeue(job):
        say("back to the queue; the search goes on in the next allocation.")
        return True
    else:
        successor = queue.submit(folder.path / SCRIPT)
        folder.note(successor, "search", by="job")
        say(f"submitted job {successor}, in which the search goes on.")
    return False


def requeue_if_first_node_died(
    folder: SlurmFolder, job: int, node: str, head: str, told_to_leave: Callable[[float], bool]
) -> None:
    """Stay on a node that Ray has left, and request another allocation once the job's first node has died, and its
    script with it.

    The job has --no-kill, so SLURM would keep its other nodes, unused, until its time is up. SLURM notices a dead node
    after minutes; then the first of the nodes left acts. SLURM is asked at first even if the head answers: a node that
    was only cut off comes back with Ray, and SLURM then kills the script that it had given up.

    Args:
        folder: The search's.
        job: The job.
        node: The node that this process runs on.
        head: Where the Ray cluster was, as HOST:PORT.
        told_to_leave: Whether, within so many seconds, the script ends this step.
    """
    first, leaves = True, False
    while True:
        answered = answers(head)
        if first or leaves or not answered:
            with suppress(UserError):  # no answer from SLURM: this node itself may be cut off
                left = queue.nodes_without_script(job)
                if left[:1] == [node]:
                    say(f"the first node of job {job} is gone, and its script with it.")
                    if not requeue_or_resubmit(folder, job, may_requeue=True):
                        queue.cancel(job)
                if left:
                    return
        if leaves or (answered and not folder.is_up(job)):  # without it, the script has to hear that Ray did not start
            return
        first, leaves = False, told_to_leave(_SECONDS_BETWEEN_POLLS)


def say(text: str) -> None:
    """Print a line with the time to the job's log."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)
