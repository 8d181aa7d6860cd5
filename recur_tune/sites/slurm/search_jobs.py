"""A search in SLURM's queue: with which profile it goes there, and what of it is there."""

from __future__ import annotations

from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.folder import SlurmFolder
from recur_tune.sites.slurm.profile import Profile, read_profile


def chosen_profile(given: str, directory: SearchDirectory | None = None, **changes: Any) -> Profile:
    """The profile that was named or, for a search that has one, its own."""
    if given:
        return read_profile(given, **changes)
    folder = SlurmFolder(directory) if directory else None
    if folder is None or not folder.exists:
        raise UserError("slurm: it needs a profile of your site, as `--slurm generic-gpu`.")
    return read_profile(str(folder.path / "profile.yaml"), **changes)


def check_not_queued(directory: SearchDirectory) -> None:
    """Refuse to start what waits for its turn already."""
    folder = SlurmFolder(directory)
    for kind, job in folder.living_jobs() if folder.exists else []:
        if kind == "search":
            raise UserError(f"name: {job} for {directory.name} already; `recur-tune stop {directory.name}` ends it.")


def stop_in_queue(directory: SearchDirectory) -> bool:
    """End the jobs of a search that does not run yet; True when there were any."""
    folder = SlurmFolder(directory)
    living = folder.living_jobs() if folder.exists else []
    for _, job in living:
        if job.is_waiting or not directory.is_running:
            queue.cancel(job.number)
    return bool(living)


def queue_lines(directory: SearchDirectory) -> list[str]:
    """What SLURM has of a search."""
    folder = SlurmFolder(directory)
    if not folder.exists:
        return []
    if living := folder.living_jobs():
        return [f"{job}{' (grown)' if kind == 'grow' else ''}" for kind, job in living]
    return [str(last) for last in queue.find(folder.jobs("search")[-1:]).values()]
