"""SLURM on the command line: what `search`, `resume`, `stop` and `status` do there, and `grow`, `logs`, `tunnel`,
`cluster check`."""

from __future__ import annotations

import getpass
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import click

from recur_tune.cli.detach import LOG
from recur_tune.cli.display import note, stderr
from recur_tune.cli.options import command_line, results_option
from recur_tune.cli.watch import Watch
from recur_tune.errors import UserError
from recur_tune.searching.directory import SearchDirectory, results_folder
from recur_tune.searching.spec import SearchSpec
from recur_tune.slurm import queue
from recur_tune.slurm.folder import SlurmFolder
from recur_tune.slurm.profile import HERE, Profile, read_profile
from recur_tune.spec import parse
from recur_tune.throttle import Every

if TYPE_CHECKING:
    from recur_tune.searching.knowledge import Knowledge

_SECONDS_BETWEEN_QUESTIONS = 3.0  # to the queue, which everybody asks

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


def submit_new(
    results: Path, name: str, spec: SearchSpec, profile: Profile, follow: bool, knowledge: Knowledge | None = None
) -> None:
    """A new search goes into the queue."""
    from recur_tune.running.preparation import check_shapes
    from recur_tune.slurm import submit

    with stderr.status("checking the space and the site …"):
        submit.check_site(profile, results)
        submit.check_trials_fit(spec.resources, profile)
        check_shapes(spec)
    directory, job = submit.submit_new(results, name, spec, profile, knowledge)
    _tell_submitted(directory, job, follow)


def submit_again(
    directory: SearchDirectory, spec: SearchSpec, profile: Profile, follow: bool, command: Sequence[str] = ("resume",)
) -> None:
    """A search that was begun, here or there, goes on in the queue; `command` is what its allocations run."""
    from recur_tune.slurm import submit

    check_not_queued(directory)
    with stderr.status("checking the site …"):
        submit.check_site(profile, directory.path.parent)
        submit.check_trials_fit(spec.resources, profile)
    directory.change_spec(spec)
    _tell_submitted(directory, submit.submit(directory, profile, command), follow)


def chosen_profile(given: str, directory: SearchDirectory | None = None, **changes: Any) -> Profile:
    """The profile that was named or, for a search that has one, its own."""
    if given:
        return read_profile(given, **changes)
    folder = SlurmFolder(directory) if directory else None
    if folder is None or not folder.exists:
        raise UserError("slurm: it needs a profile of your site, as `--slurm generic-gpu`.")
    return read_profile(str(folder.path / "profile.yaml"), **changes)


def run_here(directory: SearchDirectory) -> None:
    """Run a search in the allocation that this process is in; Ctrl-C once saves the trials, twice ends at once."""
    from recur_tune.slurm.allocation import Allocation
    from recur_tune.slurm.here import run_in

    folder = SlurmFolder(directory)
    folder.create(parse(Profile, {"requeue": False, "allocations": 1}))
    with Watch(directory) as watch:
        watch.stage("starting Ray in the allocation …")
        run_in(folder, Allocation.current(), watch.searching)


def check_place(
    address: str | None, slurm: str | None, nodes: int | None, gpus_per_node: int | None, follow: bool
) -> None:
    """One place to run in, and no option for another."""
    if slurm is not None and address is not None:
        raise UserError(f"slurm: --address {address} is given too; choose one of them.")
    for option, given in (
        ("nodes", nodes is not None),
        ("gpus-per-node", gpus_per_node is not None),
        ("follow", follow),
    ):
        if given and not is_submitted(slurm):
            raise UserError(f"{option}: --{option} is for a search that is submitted; add --slurm PROFILE.")


def check_here(spec: SearchSpec, results: Path) -> None:
    """Refuse what cannot work in the allocation that we are in."""
    from recur_tune.running.preparation import check_shapes
    from recur_tune.slurm.allocation import Allocation
    from recur_tune.slurm.here import check_seen

    queue.check_there_is_slurm()
    check_seen(results, Allocation.current())
    with stderr.status("checking the space …"):
        check_shapes(spec)


def print_script(search: Path, profile: Profile) -> None:
    """The job script as it would be submitted."""
    from recur_tune.slurm.submit import job_script

    click.echo(job_script(search, profile), nl=False)
    note("nothing was submitted.")


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


def follow_search(directory: SearchDirectory) -> None:
    """Show a search live until it has ended, from the queue on; Ctrl-C leaves it alone."""
    folder = SlurmFolder(directory)
    due, alive, queued = Every(_SECONDS_BETWEEN_QUESTIONS), True, folder.exists
    told: list[tuple[int, str]] = []
    try:
        with Watch(directory) as watch:
            watch.searching()
            while alive:
                if folder.exists and due():
                    living = folder.living_jobs()
                    states = [(job.number, job.state) for _, job in living]
                    if states != told and living:
                        watch.stage("; ".join(str(job) for _, job in living))
                    told = states
                    queued = any(kind == "search" for kind, _ in living) and not folder.is_over
                alive = directory.is_running or queued
                time.sleep(0.3)
    except KeyboardInterrupt:
        stderr.print(f"{directory.name} goes on.")


def _tell_submitted(directory: SearchDirectory, job: int, follow: bool) -> None:
    stderr.print(f"submitted as job {job}.")
    click.echo(job)
    for command, why in (("status", "how it is doing"), ("logs", "what it says"), ("stop", "end it")):
        stderr.print(f"{why}:  {command_line(command, directory)}", soft_wrap=True)
    if follow:
        follow_search(directory)


@click.command()
@click.argument("name")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes to add.")
@click.option("--time", "length", help="How long they stay, as 2:00:00 or 2h. [default: the profile's]")
@click.option("--gpus-per-node", type=click.IntRange(min=0), help="GPUs on each. [default: the profile's]")
@results_option
def grow(name: str, nodes: int, length: str | None, gpus_per_node: int | None, results: Path | None) -> None:
    """Let another allocation join a search that runs in SLURM.

    It may be short and fit a gap in the queue: before its end its trials save themselves and go on elsewhere.

    \b
      recur-tune grow books --nodes 2 --time 2:00:00
    """
    from recur_tune.slurm import submit

    directory = SearchDirectory.open(results_folder(results), name)
    if not any(kind == "search" for kind, _ in _folder(directory).living_jobs()):
        raise UserError(f"name: {name} has no job in SLURM to join; `recur-tune resume {name} --slurm` starts one.")
    profile = chosen_profile("", directory, nodes=nodes, time=length, gpus_per_node=gpus_per_node)
    if length is not None and profile.warning >= (profile.time or 0):
        profile = profile.model_copy(update={"warning": (profile.time or 0) / 4})
    submit.check_site(profile, directory.path.parent)
    job = submit.submit_guest(directory, profile)
    stderr.print(f"submitted as job {job}; it joins {name} when it gets its nodes.")
    click.echo(job)


@click.command()
@click.argument("name")
@click.option("--follow", is_flag=True, help="Go on printing until the search has no job any more.")
@results_option
def logs(name: str, follow: bool, results: Path | None) -> None:
    """Print what the jobs of a search in SLURM have said, the oldest first; or what a detached search has.

    \b
      recur-tune logs books --follow
    """
    directory = SearchDirectory.open(results_folder(results), name)
    if (directory.path / LOG).exists() and not SlurmFolder(directory).exists:
        _print_detached(directory, follow)
        return
    folder = _folder(directory)
    shown: dict[int, int] = {}
    while True:
        alive = follow and any(folder.living_jobs())
        for job in folder.jobs("search", "grow"):
            file = folder.log(job)
            text = file.read_text(errors="replace") if file.exists() else ""
            if job not in shown:
                found = queue.find([job]).get(job)
                note(f"job {job}" if text or not found else f"{found}; it has said nothing yet")
            click.echo(text[shown.get(job, 0) :], nl=False)
            shown[job] = len(text)
        if not alive:
            return
        sys.stdout.flush()
        time.sleep(1)


def _print_detached(directory: SearchDirectory, follow: bool) -> None:
    """What a search that runs by itself has said."""
    with (directory.path / LOG).open(errors="replace") as file:
        while True:
            alive = follow and directory.is_running
            click.echo(file.read(), nl=False)
            if not alive:
                return
            sys.stdout.flush()
            time.sleep(1)


@click.command()
@click.argument("name")
@results_option
def tunnel(name: str, results: Path | None) -> None:
    """Print the SSH command that brings a search's dashboards to your own machine, and their addresses there.

    \b
      recur-tune tunnel books
    """
    folder = _folder(SearchDirectory.open(results_folder(results), name))
    head = folder.head
    if head is None:
        state = "; ".join(str(job) for _, job in folder.living_jobs()) or "it has no job in SLURM"
        raise UserError(f"name: {name} has no dashboard now ({state}).")
    ports = {here: there for here, there in ((8265, head.dashboard), (5000, head.mlflow)) if there}
    if not ports:
        raise UserError(f"name: {name} shows no dashboard, as its profile says (dashboard: off, mlflow: false).")
    user, login = getpass.getuser(), folder.profile.login or socket.getfqdn()
    forwards = [word for here, there in ports.items() for word in ("-L", f"{here}:localhost:{there}")]
    click.echo(shlex.join(["ssh", "-N", *forwards, "-J", f"{user}@{login}", f"{user}@{head.node}"]))
    stderr.print("run that on your own machine, and open there:")
    if head.dashboard:
        stderr.print(f"Ray:  http://localhost:8265   (it asks for the token in {folder.token})", soft_wrap=True)
    if head.mlflow:
        stderr.print("MLflow:  http://localhost:5000")


@click.group()
def cluster() -> None:
    """Look at the site that searches run on."""


@cluster.command()
@click.option("--slurm", required=True, metavar="PROFILE", help="The site's profile.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes to look at, instead of the profile's.")
@results_option
def check(slurm: str, nodes: int | None, results: Path | None) -> None:
    """Try a site in a job of a minute: do the nodes see each other, their GPUs and the storage?

    \b
      recur-tune cluster check --slurm generic-gpu
    """
    from recur_tune.slurm.check import look_at
    from recur_tune.slurm.submit import check_site

    folder = results_folder(results)
    profile = read_profile(slurm, nodes=nodes)
    check_site(profile, folder)
    findings = look_at(profile, folder, lambda text: stderr.print(text, soft_wrap=True))
    for finding in findings:
        click.echo(finding)
    if any(not finding.good for finding in findings):
        raise UserError("slurm: this site is not ready for a search yet; what failed stands above.")
    note("all is well; a search can run here.")


def _folder(directory: SearchDirectory) -> SlurmFolder:
    folder = SlurmFolder(directory)
    if not folder.exists:
        raise UserError(
            f"name: {directory.name} was never submitted to SLURM, nor detached; "
            f"`recur-tune resume {directory.name} --slurm PROFILE` does that."
        )
    return folder


def is_submitted(slurm: str | None) -> TypeGuard[str]:
    """Whether a search goes into the queue, and does not run in the allocation that we are in."""
    return slurm is not None and slurm != HERE
