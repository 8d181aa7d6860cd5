"""Running a search and watching it, in this process or on a cluster elsewhere: what `search` and `confirm` share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

import click

from recur_tune.cli.display import stderr
from recur_tune.cli.options import command_line
from recur_tune.common.errors import Paused
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.state import SearchState
from recur_tune.sites.ray.cluster import CLIENT, JOBS, runs_elsewhere
from recur_tune.sites.ray.liveness import ClusterLost

if TYPE_CHECKING:
    from recur_tune.search.record.confirmation import ConfirmationPlan
    from recur_tune.search.record.spec import SearchSpec

address_option = click.option(
    "--address",
    help="A Ray cluster: auto, HOST:PORT, ray://HOST:10001 or http://HOST:8265. [default: one of our own, here]",
)


def run_watched(
    directory: SearchDirectory, address: str | None, confirm: ConfirmationPlan | None = None,
    change: SearchSpec | None = None, tell: Callable[[SearchState], None] = lambda state: None,
) -> SearchState:  # fmt: skip
    """Run a search, perhaps changed, or train its front again, until it ends or is paused; all that happens is shown.

    Where the place that it runs in fails it, `tell` prints what it has found so far before the sentence that says so.
    """

    def with_hint(fault: Paused) -> Paused:
        tell(directory.state())
        command = command_line("resume" if confirm is None else "confirm", directory)
        return type(fault)(f"{fault} Nothing finished is lost; `{command}` goes on.")

    def end_at_once(fault: Paused) -> None:
        click.echo(f"recur-tune: {with_hint(fault)}", err=True)
        sys.stdout.flush()
        os._exit(fault.exit_code)

    if change is not None and address is not None and runs_elsewhere(address):
        directory.change_spec(change)
    if runs_as_job(address):
        from recur_tune.search.run.jobs import run_search_as_job

        # The job is this same command on the cluster, and what it prints arrives here.
        run_search_as_job(directory, address, confirm, lambda line: stderr.print(line, soft_wrap=True))
        return directory.state()
    from recur_tune.cli.watch import Watch

    with Watch(directory, end_at_once) as watch:
        watch.stage("loading …")
        try:
            if address and address.startswith(CLIENT):
                from recur_tune.search.run.client import run_search_there

                return run_search_there(directory, address, confirm, watch)
            from recur_tune.search.run.driver import run_search
            from recur_tune.sites.slurm.folder import SlurmFolder
            from recur_tune.sites.slurm.metrics import Allocations

            slurm = SlurmFolder(directory)
            asks = [Allocations(slurm)] if slurm.exists else []
            return run_search(directory, address, watch, asks, confirm, change)
        except Paused as found:
            fault = found
    if isinstance(fault, ClusterLost):
        end_at_once(fault)  # on an orderly way out Ray waits for its cluster, or crashes
    raise with_hint(fault) from None


def runs_as_job(address: str | None) -> TypeGuard[str]:
    """Whether a search is handed to a cluster's own queue of jobs, whose output arrives here as it is."""
    return address is not None and address.startswith(JOBS)
