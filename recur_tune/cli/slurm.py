"""SLURM's own commands: `grow`, `logs`, `tunnel` and `cluster check`."""

from __future__ import annotations

import getpass
import shlex
import socket
import sys
import time
from pathlib import Path

import click

from recur_tune.cli.display import note, stderr
from recur_tune.cli.options import results_option
from recur_tune.cli.running import LOG
from recur_tune.cli.submitting import tell_submitted
from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory, results_folder
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.folder import GUEST_SCRIPT, SlurmFolder
from recur_tune.sites.slurm.profile import read_profile
from recur_tune.sites.slurm.search_jobs import chosen_profile


@click.command()
@click.argument("name")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes to add.")
@click.option("--time", "length", help="How long they stay, as 2:00:00 or 2h. [default: the profile's]")
@click.option("--gpus-per-node", type=click.IntRange(min=0), help="GPUs on each. [default: the profile's]")
@results_option
def grow(name: str, nodes: int, length: str | None, gpus_per_node: int | None, results: Path | None) -> None:
    """Let another allocation join a search that runs in SLURM.

    It may be short and fit a gap in the queue: before its end its trials are saved and move to other nodes.

    \b
      recur-tune grow books --nodes 2 --time 2:00:00
    """
    from recur_tune.sites.slurm import submit

    directory = SearchDirectory.open(results_folder(results), name)
    if not any(kind == "search" for kind, _ in _folder(directory).living_jobs()):
        raise UserError(f"name: {name} has no job in SLURM to join; `recur-tune resume {name} --slurm` starts one.")
    profile = chosen_profile("", directory, nodes=nodes, time=length, gpus_per_node=gpus_per_node)
    if length is not None and profile.warning >= (profile.time or 0):
        profile = profile.model_copy(update={"warning": (profile.time or 0) / 4})
    submit.check_site(profile, directory.path.parent)
    job = submit.submit_guest(directory, profile)
    tell_submitted(job, SlurmFolder(directory).path / GUEST_SCRIPT)
    stderr.print(f"it joins {name} when it gets its nodes.")
    click.echo(job)


@click.command()
@click.argument("name")
@click.option("--follow", is_flag=True, help="Keep printing until the search has no job.")
@results_option
def logs(name: str, follow: bool, results: Path | None) -> None:
    """Print the logs of a search's SLURM jobs, the oldest first; or of a detached search.

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
        alive = follow and _has_jobs(folder)
        for job in folder.jobs("search", "grow"):
            file = folder.log(job)
            text = file.read_text(errors="replace") if file.exists() else ""
            if job not in shown:
                note(f"job {job}" if text else _why_empty(job))
            click.echo(text[shown.get(job, 0) :], nl=False)
            shown[job] = len(text)
        if not alive:
            return
        sys.stdout.flush()
        time.sleep(1)


def _has_jobs(folder: SlurmFolder) -> bool:
    try:
        return any(folder.living_jobs())
    except UserError:  # the controller restarts
        return True


def _why_empty(job: int) -> str:
    try:
        found = queue.find([job]).get(job)
    except UserError as error:
        return f"job {job}; its log is empty; {error}"
    return f"{found}; its log is empty" if found else f"job {job}"


def _print_detached(directory: SearchDirectory, follow: bool) -> None:
    """Print the log of a detached search."""
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
    doors = {8265: f"localhost:{head.dashboard}"} if head.dashboard else {}
    doors |= {5000: head.mlflow} if head.mlflow else {}
    if not doors:
        raise UserError(f"name: {name} shows no dashboard, as its profile says (dashboard: off, mlflow: false).")
    user, login = getpass.getuser(), folder.profile.login or socket.getfqdn()
    forwards = [word for here, there in doors.items() for word in ("-L", f"{here}:{there}")]
    click.echo(shlex.join(["ssh", "-N", *forwards, "-J", f"{user}@{login}", f"{user}@{head.node}"]))
    stderr.print("run that on your own machine, and open there:")
    if head.dashboard:
        stderr.print(f"Ray:  http://localhost:8265   (it asks for the token in {folder.token})", soft_wrap=True)
    if head.mlflow:
        stderr.print("MLflow:  http://localhost:5000")


@click.group()
def cluster() -> None:
    """Check the site that searches run on."""


@cluster.command()
@click.option("--slurm", required=True, metavar="PROFILE", help="The site's profile.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes to look at, instead of the profile's.")
@results_option
def check(slurm: str, nodes: int | None, results: Path | None) -> None:
    """Check a site with a job of a minute: do the nodes reach each other, their GPUs and the storage?

    \b
      recur-tune cluster check --slurm generic-gpu
    """
    from recur_tune.sites.slurm.check import look_at
    from recur_tune.sites.slurm.submit import check_site

    folder = results_folder(results)
    profile = read_profile(slurm, nodes=nodes)
    check_site(profile, folder)
    findings = look_at(profile, folder, lambda text: stderr.print(text, soft_wrap=True))
    for finding in findings:
        click.echo(finding)
    if any(not finding.good for finding in findings):
        raise UserError("slurm: this site is not ready for a search; the failed checks are listed above.")
    note("all checks passed; a search can run here.")


def _folder(directory: SearchDirectory) -> SlurmFolder:
    folder = SlurmFolder(directory)
    if not folder.exists:
        raise UserError(
            f"name: {directory.name} was never submitted to SLURM, nor detached; "
            f"`recur-tune resume {directory.name} --slurm PROFILE` does that."
        )
    return folder
