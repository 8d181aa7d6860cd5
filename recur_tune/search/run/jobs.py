"""A search as a Ray job, through the dashboard's port of a cluster."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from recur_tune.cluster.connection import check_reachable
from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

    from recur_tune.search.record.confirmation import ConfirmationPlan


def run_search_as_job(
    directory: SearchDirectory, address: str, confirm: ConfirmationPlan | None, say: Callable[[str], None]
) -> None:
    """Submit a job and follow it to its end; Ctrl-C leaves it running. The cluster has to see the search directory."""
    from ray.job_submission import JobStatus

    client = job_client(address)
    with _one_sentence(address):
        job = client.submit_job(
            entrypoint=_entrypoint(directory, confirm),
            metadata={"job_name": f"recur-tune {directory.name}"},
            entrypoint_num_cpus=0,
        )
    say(f"submitted as job {job}; Ctrl-C only stops the watching, `recur-tune stop {directory.name}` the search.")
    try:
        asyncio.run(_follow(client, job, say))
    except KeyboardInterrupt:
        say(f"{directory.name} goes on; watch it with `recur-tune status {directory.name} --follow`.")
        return
    # A paused search ends its command with an exit code of its own, which Ray calls a failure.
    if client.get_job_status(job) != JobStatus.SUCCEEDED and directory.state().status != "paused":
        info: Any = client.get_job_info(job)
        raise UserError(f"address: the job on {address} ended as {info.status} ({info.message}).")


def job_client(address: str) -> JobSubmissionClient:
    """Ray's client for jobs at http://HOST:PORT; refuses an address that does not answer or denies access."""
    check_reachable(address)
    from ray.job_submission import JobSubmissionClient

    with _one_sentence(address):
        return JobSubmissionClient(address)


@contextmanager
def _one_sentence(address: str) -> Iterator[None]:
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        raise UserError(
            f"address: {address} asks for the cluster's token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH to the token or its file."
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"address: {address} takes no job ({' '.join(str(error).split())[:200]}).") from error


def _entrypoint(directory: SearchDirectory, confirm: ConfirmationPlan | None) -> str:
    """The command on the cluster. A new search is resumed too: its directory has everything."""
    words = ["resume"] if confirm is None else confirm.command
    where = ["--results", str(directory.path.parent), "--address", "auto"]
    return shlex.join(["recur-tune", *words, directory.name, *where])


async def _follow(client: JobSubmissionClient, job: str, say: Callable[[str], None]) -> None:
    async for lines in client.tail_job_logs(job):
        say(lines.rstrip("\n"))
