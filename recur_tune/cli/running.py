"""Running a search: watched from here, wherever it runs, or detached from the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

import click

from recur_tune.cli.display import stderr
from recur_tune.cli.options import command_line
from recur_tune.cluster.connection import CLIENT, JOBS, runs_elsewhere
from recur_tune.cluster.liveness import ClusterLost
from recur_tune.cluster.sigterm import paused_by_sigterm
from recur_tune.common.errors import Paused, UserError
from recur_tune.search.record.directory import FolderGone, SearchDirectory
from recur_tune.search.record.state import SearchState

if TYPE_CHECKING:
    from recur_tune.search.record.confirmation import ConfirmationPlan
    from recur_tune.search.record.spec import SearchSpec

LOG = "search.log"  # of a detached search

address_option = click.option(
    "--address",
    help="A Ray cluster: auto, HOST:PORT, ray://HOST:10001 or http://HOST:8265. [default: a local one]",
)


def run_watched(
    directory: SearchDirectory, address: str | None, confirm: ConfirmationPlan | None = None,
    change: SearchSpec | None = None, tell: Callable[[SearchState], None] = lambda state: None,
) -> SearchState:  # fmt: skip
    """Run a search, perhaps changed, or its confirmation, with a live view until it ends or is paused.

    Where cluster or storage fails, `tell` prints the results so far before the error.
    """

    def with_hint(fault: Paused) -> Paused:
        tell(directory.state())
        command = command_line("resume" if confirm is None else "confirm", directory)
        return type(fault)(f"{fault} Nothing finished is lost; `{command}` continues it.")

    def end_at_once(fault: Paused) -> None:
        click.echo(f"recur-tune: {with_hint(fault)}", err=True)
        sys.stdout.flush()
        os._exit(fault.exit_code)

    if change is not None and address is not None and runs_elsewhere(address):
        directory.change_spec(change)
    if runs_as_job(address):
        from recur_tune.search.run.jobs import run_search_as_job

        # The job is this same command on the cluster; its output is printed here.
        run_search_as_job(directory, address, confirm, lambda line: stderr.print(line, soft_wrap=True))
        return directory.state()
    from recur_tune.cli.live_view import LiveView

    with paused_by_sigterm(), LiveView(directory, end_at_once) as watch:
        watch.stage("loading …")
        try:
            from recur_tune.api.outputs import OUTPUTS

            if address and address.startswith(CLIENT):
                from recur_tune.search.run.client import run_search_there

                return run_search_there(directory, OUTPUTS, address, confirm, watch)
            from recur_tune.search.run.driver import run_search

            return run_search(directory, OUTPUTS, address, watch, confirm, change)
        except FolderGone:  # there is nothing to read, and nothing to continue at this place
            raise
        except Paused as found:
            fault = found
    if isinstance(fault, ClusterLost):
        end_at_once(fault)  # a normal exit would wait for Ray, or crash in it
    raise with_hint(fault) from None


def runs_as_job(address: str | None) -> TypeGuard[str]:
    """Whether a search is submitted as a Ray job, whose output is printed here."""
    return address is not None and address.startswith(JOBS)


def run_detached(directory: SearchDirectory, address: str | None) -> None:
    """Start `recur-tune resume` in a session of its own, and return once it runs."""
    words = ["resume", directory.name, "--results", str(directory.path.parent)]
    if address is not None:
        words += ["--address", address]
    log = directory.path / LOG
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "recur_tune.cli.main", *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    with stderr.status(f"starting {directory.name} …"):
        while not directory.is_running:
            if process.poll() is not None and not directory.is_running:
                said = log.read_bytes()[start:].decode(errors="replace").strip()
                if process.returncode:
                    raise UserError(f"name: {directory.name} did not start; it said: {said}")
                return
            time.sleep(0.2)
    stderr.print(f"{directory.name} runs in the background, as process {process.pid}; this terminal may be closed.")
    for command, why in (("status", "how it is doing"), ("logs", "what it says"), ("stop", "pause it")):
        stderr.print(f"{why}:  {command_line(command, directory)}", soft_wrap=True)
