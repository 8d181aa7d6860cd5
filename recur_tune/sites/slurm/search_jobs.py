"""A search's jobs in SLURM's queue, and the profile for them."""

from __future__ import annotations

from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.folder import SlurmFolder
from recur_tune.sites.slurm.profile import Profile, read_profile


def chosen_profile(given: str, directory: SearchDirectory | None = None, **changes: Any) -> Profile:
    """The given profile or, for a search that has one, its own."""
    if given:
        return read_profile(given, **changes)
    folder = SlurmFolder(directory) if directory else None
    if folder is None or not folder.exists:
        raise UserError("slurm: it needs a profile of your site, as `--slurm generic-gpu`.")
    return read_profile(str(folder.path / "profile.yaml"), **changes)


def check_not_queued(directory: SearchDirectory) -> None:
    """Refuse a search that has a job already."""
    folder = SlurmFolder(directory)
    for kind, job in folder.living_jobs() if folder.exists else []:
        if kind == "search":
            raise UserError(f"name: {job} for {directory.name} already; `recur-tune stop {directory.name}` ends it.")


def stop_in_queue(directory: SearchDirectory) -> bool:
    """Cancel the waiting jobs of a search; True if it had any job."""
    folder = SlurmFolder(directory)
    living = folder.living_jobs() if folder.exists else []
    for _, job in living:
        if job.is_waiting or not directory.is_running:
            queue.cancel(job.number)
    return bool(living)


def queue_lines(directory: SearchDirectory) -> list[str]:
    """Lines about a search's jobs, or why they are not known: a search is shown without SLURM's controller too."""
    folder = SlurmFolder(directory)
    if not folder.exists:
        return []
    try:
        if living := folder.living_jobs():
            return [f"{job}{' (grown)' if kind == 'grow' else ''}" for kind, job in living]
        return [str(last) for last in queue.find(folder.jobs("search")[-1:]).values()]
    except UserError as error:
        return [f"its jobs are not known: {error}"]
