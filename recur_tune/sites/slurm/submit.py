"""Submission from the login node: requests that the site can never serve are refused, the rest is submitted."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from recur_tune.cluster.capacity import trial_resources
from recur_tune.cluster.connection import Cluster
from recur_tune.common.errors import UserError
from recur_tune.common.units import format_duration
from recur_tune.config.resources import Resources
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.folder import GUEST_SCRIPT, SCRIPT, SlurmFolder
from recur_tune.sites.slurm.job_script import render
from recur_tune.sites.slurm.profile import Profile, format_slurm_time

_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}


def check_site(profile: Profile, results: Path) -> None:
    """Refuse a profile that this site cannot serve, before anything is created or submitted."""
    queue.check_there_is_slurm()
    known = queue.partitions()
    names = ", ".join(sorted(known))
    if profile.partition is not None and profile.partition not in known:
        raise UserError(f"partition: there is no {profile.partition!r} here; there are {names}.")
    chosen = known.get(profile.partition or "") or next((one for one in known.values() if one.default), None)
    if chosen is None:
        raise UserError(f"partition: this site has no default; name one of {names}.")
    if profile.time is not None and profile.time > chosen.limit:
        longest = format_slurm_time(chosen.limit)
        raise UserError(f"time: {format_slurm_time(profile.time)} is beyond the limit of {chosen.name}, {longest}.")
    if profile.time is not None and profile.warning >= profile.time:
        raise UserError(
            f"warning: {format_duration(profile.warning)} before the end is no time to work in, the allocation being "
            f"{format_slurm_time(profile.time)} long; make it shorter, or the allocation longer."
        )
    for field, wanted, most, what in (
        ("nodes", profile.nodes, chosen.nodes, "nodes"),
        ("gpus_per_node", profile.gpus_per_node, chosen.gpus, "GPUs on a node"),
        ("cpus_per_node", profile.cpus_per_node or 0, chosen.cpus, "cores on a node"),
    ):
        if wanted > most:
            raise UserError(f"{field}: {wanted} is too many; partition {chosen.name} has at most {most} {what}.")
    check_shared(profile, results)


def check_shared(profile: Profile, folder: Path) -> None:
    """Refuse results on storage that the nodes do not share."""
    folder, storage = folder.resolve(), profile.storage_folder
    if "\\" in str(folder):
        raise UserError(f"results: {folder} has a backslash, with which SLURM finds no log; give --results elsewhere.")
    if storage is not None:
        if not folder.is_relative_to(storage):
            raise UserError(
                f"results: {folder} is not in {storage}, which the nodes share (storage); give --results there."
            )
        return
    if file_system(folder) in _IN_MEMORY or any(
        folder.is_relative_to(private) for private in ("/tmp", "/var/tmp", "/dev/shm")
    ):
        raise UserError(f"results: {folder} is local, and the nodes do not see it; give --results on shared storage.")


def file_system(folder: Path) -> str:
    """The type of a folder's file system, as ext4, nfs4 or lustre."""
    folder = folder.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


def check_trials_fit(resources: Resources, profile: Profile) -> None:
    """Refuse trials that no allocation of this profile can hold."""
    cpus = float(profile.cpus_per_node or 10**6)  # the site's own default is not known here
    nodes = [{"CPU": cpus, "GPU": float(profile.gpus_per_node)}] * profile.nodes
    trial_resources(resources, Cluster(None, nodes, "an allocation of this profile"))


def submit_new(
    results: Path, name: str, spec: SearchSpec, profile: Profile, knowledge: str = ""
) -> tuple[SearchDirectory, int]:
    """Create a search and submit it; where sbatch refuses, its directory is removed."""
    directory = SearchDirectory.create(results, name, spec, knowledge)
    try:
        return directory, submit(directory, profile)
    except BaseException:
        shutil.rmtree(directory.path, ignore_errors=True)
        raise


def submit(directory: SearchDirectory, profile: Profile, command: Sequence[str] = ("resume",)) -> int:
    """Submit a search, new or resumed; gives the job's number."""
    folder = SlurmFolder(directory)
    folder.create(profile)
    script = folder.path / SCRIPT
    script.write_text(job_script(directory.path, profile))
    job = queue.submit(script)
    folder.note_submitted(job, profile.nodes, command)
    return job


def submit_guest(directory: SearchDirectory, profile: Profile) -> int:
    """Submit another allocation for a running search."""
    folder = SlurmFolder(directory)
    script = folder.path / GUEST_SCRIPT
    script.write_text(render(profile, directory.name, directory.path, "job", "guest", f"{profile.warning:.0f}"))
    job = queue.submit(script)
    folder.note(job, "grow", nodes=profile.nodes)
    return job


def job_script(search: Path, profile: Profile) -> str:
    """The script that runs a search."""
    return render(profile, search.name, search, "job", "host")
