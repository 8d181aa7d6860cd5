"""SLURM for `search`, `resume`, `confirm` and `status`: submit, run in the current allocation, follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import click

from recur_tune.cli.display import note, stderr
from recur_tune.cli.live_view import LiveView
from recur_tune.cli.options import command_line
from recur_tune.common.errors import Paused, UserError
from recur_tune.common.parsing import parse
from recur_tune.common.throttle import Every
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.folder import SCRIPT, SlurmFolder
from recur_tune.sites.slurm.profile import HERE, Profile
from recur_tune.sites.slurm.search_jobs import check_not_queued

_SECONDS_BETWEEN_POLLS = 3.0  # between questions to SLURM, which all users share

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])


def slurm_options(command: AnyCommand) -> AnyCommand:
    """For commands that can send a search into the queue."""
    options = [
        click.option("--slurm", is_flag=False, flag_value="", metavar="PROFILE",
                     help="Run in a SLURM allocation: a site's profile, as generic-gpu, or 'here' for the "
                          "allocation that you are in."),
        click.option("--nodes", type=click.IntRange(min=1), help="With --slurm: nodes, instead of the profile's."),
        click.option("--gpus-per-node", type=click.IntRange(min=0), help="With --slurm: GPUs, likewise."),
        click.option("--follow", is_flag=True, help="With --slurm: watch it after submitting; Ctrl-C only stops that."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def check_place(
    address: str | None, slurm: str | None, nodes: int | None, gpus_per_node: int | None, follow: bool
) -> None:
    """Refuse options that contradict each other: --address with --slurm, or options of --slurm without it."""
    if slurm is not None and address is not None:
        raise UserError(f"slurm: --address {address} is given too; choose one of them.")
    for option, given in (
        ("nodes", nodes is not None),
        ("gpus-per-node", gpus_per_node is not None),
        ("follow", follow),
    ):
        if given and not is_submitted(slurm):
            raise UserError(f"{option}: --{option} is for a search that is submitted; add --slurm PROFILE.")


def is_submitted(slurm: str | None) -> TypeGuard[str]:
    """Whether a search is submitted, and does not run in the current allocation."""
    return slurm is not None and slurm != HERE


def submit_new(results: Path, name: str, spec: SearchSpec, profile: Profile, follow: bool, knowledge: str = "") -> None:
    """Create and submit a new search."""
    from recur_tune.search.run.preparation import check_limits, check_shapes
    from recur_tune.sites.slurm import submit

    with stderr.status("checking the space and the site …"):
        submit.check_site(profile, results)
        submit.check_trials_fit(spec.resources, profile)
        check_shapes(spec)
        check_limits(spec)
    directory, job = submit.submit_new(results, name, spec, profile, knowledge)
    _tell_submitted(directory, job, follow)


def submit_again(
    directory: SearchDirectory, spec: SearchSpec, profile: Profile, follow: bool, command: Sequence[str] = ("resume",)
) -> None:
    """Submit a search that was begun before; `command` is what its allocations run."""
    from recur_tune.sites.slurm import submit

    check_not_queued(directory)
    with stderr.status("checking the site …"):
        submit.check_site(profile, directory.path.parent)
        submit.check_trials_fit(spec.resources, profile)
    directory.change_spec(spec)
    _tell_submitted(directory, submit.submit(directory, profile, command), follow)


def run_here(directory: SearchDirectory) -> None:
    """Run a search in the current allocation; Ctrl-C once saves the trials, twice ends at once."""
    from recur_tune.sites.slurm.allocation import Allocation
    from recur_tune.sites.slurm.interactive import run_in

    folder = SlurmFolder(directory)
    folder.create(parse(Profile, {"requeue": False, "allocations": 1}))
    with LiveView(directory) as watch:
        watch.stage("starting Ray in the allocation …")
        run_in(folder, Allocation.current(), watch.searching, watch.pausing)
    if directory.state().status == "paused":
        raise Paused(f"paused, and every trial saved; continue with:  {command_line('resume', directory)} --slurm here")


def check_here(spec: SearchSpec, results: Path) -> None:
    """Refuse a search that cannot run in the current allocation."""
    from recur_tune.search.run.preparation import check_shapes
    from recur_tune.sites.slurm.allocation import Allocation
    from recur_tune.sites.slurm.interactive import check_seen

    queue.check_there_is_slurm()
    check_seen(results, Allocation.current())
    with stderr.status("checking the space …"):
        check_shapes(spec)


def print_script(search: Path, profile: Profile) -> None:
    """The job script as it would be submitted."""
    from recur_tune.sites.slurm.submit import job_script

    click.echo(job_script(search, profile), nl=False)
    note("nothing was submitted; it would be, by:")
    stderr.print(queue.sbatch_command(SlurmFolder.at(search) / SCRIPT), soft_wrap=True)


def follow_search(directory: SearchDirectory) -> None:
    """Show a search live, from the queue to its end; Ctrl-C only stops the view."""
    folder = SlurmFolder(directory)
    due, alive, queued = Every(_SECONDS_BETWEEN_POLLS), True, folder.exists
    told: list[tuple[int, str]] = []
    try:
        with LiveView(directory) as watch:
            watch.searching()
            while alive:
                if folder.exists and due():
                    with suppress(UserError):  # the controller restarts; the search runs on without it
                        living = folder.living_jobs()
                        states = [(job.number, job.state) for _, job in living]
                        if states != told and living:
                            watch.stage("; ".join(str(job) for _, job in living))
                        told = states
                        queued = any(kind == "search" for kind, _ in living) and not folder.is_over
                alive = directory.is_running or queued
                time.sleep(0.3)
    except KeyboardInterrupt:
        stderr.print(f"{directory.name} continues.")


def tell_submitted(job: int, script: Path) -> None:
    """The job's number, and the command that submitted it."""
    stderr.print(f"submitted as job {job}, by:  {queue.sbatch_command(script)}", soft_wrap=True)


def _tell_submitted(directory: SearchDirectory, job: int, follow: bool) -> None:
    tell_submitted(job, SlurmFolder(directory).path / SCRIPT)
    click.echo(job)
    for command, why in (("status", "how it is doing"), ("logs", "what it says"), ("stop", "end it")):
        stderr.print(f"{why}:  {command_line(command, directory)}", soft_wrap=True)
    if follow:
        follow_search(directory)
