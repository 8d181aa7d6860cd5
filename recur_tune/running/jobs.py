"""A search as a job of a cluster that is reached through its dashboard's port."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recur_tune.cluster.ray_cluster import check_reachable
from recur_tune.errors import UserError
from recur_tune.searching.directory import SearchDirectory

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

    from recur_tune.searching.confirmation import Again


def run_search_as_job(
    directory: SearchDirectory, address: str, again: Again | None, say: Callable[[str], None]
) -> None:
    """Submit and follow until the job ends; Ctrl-C leaves it running. The cluster has to see the search directory."""
    check_reachable(address)
    from ray.job_submission import JobStatus, JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        job = client.submit_job(
            entrypoint=_entrypoint(directory, again),
            metadata={"job_name": f"recur-tune {directory.name}"},
            entrypoint_num_cpus=0,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"address: {address} takes no job ({' '.join(str(error).split())[:200]}).") from error
    say(f"submitted as job {job}; Ctrl-C only stops the watching, `recur-tune stop {directory.name}` the search.")
    try:
        asyncio.run(_follow(client, job, say))
    except KeyboardInterrupt:
        say(f"{directory.name} goes on; watch it with `recur-tune status {directory.name} --follow`.")
        return
    if client.get_job_status(job) != JobStatus.SUCCEEDED:
        info: Any = client.get_job_info(job)
        raise UserError(f"address: the job on {address} ended as {info.status} ({info.message}).")


def _entrypoint(directory: SearchDirectory, again: Again | None) -> str:
    """A new search and one to go on with are resumed alike: the directory has all of it."""
    words = ["resume"] if again is None else again.command
    where = ["--results", str(directory.path.parent), "--address", "auto"]
    return shlex.join(["recur-tune", *words, directory.name, *where])


async def _follow(client: JobSubmissionClient, job: str, say: Callable[[str], None]) -> None:
    async for lines in client.tail_job_logs(job):
        say(lines.rstrip("\n"))
