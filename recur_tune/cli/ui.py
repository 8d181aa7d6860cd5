"""`recur-tune ui`: MLflow's pages of searches and runs."""

from __future__ import annotations

import getpass
import os
import shlex
import subprocess
import tempfile
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import getfqdn

import click

from recur_tune.cli.display import note, stderr
from recur_tune.cli.options import results_option
from recur_tune.common.errors import UserError
from recur_tune.common.localhost import last_log_line, other_users
from recur_tune.search.record.directory import SearchDirectory, results_folder, searches_in
from recur_tune.training.interrupt import stop_requests

_PORT = 5000


@click.command()
@click.argument("name", required=False)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="For MLflow; the next free. [default: 5000, or none; see above]"
)
@click.option("--no-browser", is_flag=True, help="Only print the addresses.")
@results_option
def ui(name: str | None, port: int | None, no_browser: bool, results: Path | None) -> None:
    """Show the runs of all searches, or of one, in MLflow's pages, and print the address of Ray's dashboard.

    Starts an MLflow server on localhost over the results folder's runs, unless the search has a server of its own.
    Ctrl-C ends it.

    Other users of this machine could read and change the runs there. So on a shared machine, without --port, it listens
    on a socket that only you can open, and prints the SSH command for a browser on your own machine.

    \b
      recur-tune ui
      recur-tune ui books --port 8000
    """
    from recur_tune.cluster.connection import ray_token
    from recur_tune.search.record.tracking_place import TRAINING, is_server, tracking_uri, without_password
    from recur_tune.tracking.mlflow.tracker import Tracker

    folder = results_folder(results)
    directory = SearchDirectory.open(folder, name) if name else next(reversed(searches_in(folder)), None)
    if directory is None:
        raise UserError(f"results: there are no searches in {folder} to show; `recur-tune search` makes one.")
    dashboard = directory.state().links.get("dashboard") if directory.is_running else None
    if dashboard:
        stderr.print(f"Ray dashboard:  {dashboard}  (it asks for the token in {ray_token()})", soft_wrap=True)
    uri, tracker = tracking_uri(directory), Tracker(directory)
    if is_server(uri):
        _show(tracker.run_url or without_password(uri), no_browser)
        return
    page, others = f"{tracker.page}?{TRAINING}" if name else tracker.run_list, other_users()
    if others and port is None:
        _serve_me(uri, page, others)
        return
    if others:
        note(f"others on this machine ({', '.join(others)}) can change the runs here; without --port they cannot.")
    _serve(uri, port or _PORT, page, no_browser)


def _serve(uri: str, wanted: int, page: str, no_browser: bool) -> None:
    from recur_tune.tracking.mlflow.server import answering_server

    with _log() as log, ExitStack() as until_the_end:
        with stderr.status("starting MLflow …"):
            server, port = until_the_end.enter_context(answering_server(uri, wanted, log))
        if port != wanted:
            note(f"port {wanted} is taken; this is {port}.")
        asked = until_the_end.enter_context(stop_requests())  # by SIGTERM as well: the server must not outlive us
        _show(f"http://127.0.0.1:{port}/{page}", no_browser)
        _stay(server, asked, log)


def _serve_me(uri: str, page: str, others: list[str]) -> None:
    """Serve on a socket that only this user can open, for a browser behind an SSH tunnel."""
    from recur_tune.tracking.mlflow.server import answering_private_server

    with _log() as log, ExitStack() as until_the_end:
        with stderr.status("starting MLflow …"):
            place = Path(tempfile.gettempdir())
            server, socket = until_the_end.enter_context(answering_private_server(uri, place, log))
        asked = until_the_end.enter_context(stop_requests())
        note(f"others are on this machine ({', '.join(others)}), so only you can open this; --port lets them in.")
        stderr.print("run this on your own machine:")
        click.echo(shlex.join(["ssh", "-N", "-L", f"{_PORT}:{socket}", f"{getpass.getuser()}@{getfqdn()}"]))
        stderr.print(f"and open there:  http://localhost:{_PORT}/{page}", soft_wrap=True)
        _stay(server, asked, log)


@contextmanager
def _log() -> Iterator[Path]:
    """A log file for a server; after a failure it is kept."""
    file, name = tempfile.mkstemp(prefix="recur-tune-ui-", suffix=".log")
    os.close(file)
    yield Path(name)
    Path(name).unlink()


def _stay(server: subprocess.Popen[bytes], asked: Callable[[], bool], log: Path) -> None:
    stderr.print("Ctrl-C ends it.")
    while not asked():
        if server.poll() is not None:
            raise UserError(f"MLflow's server has ended {last_log_line(log)}.")
        time.sleep(0.5)


def _show(url: str, no_browser: bool) -> None:
    click.echo(url)
    if not no_browser:
        try:
            webbrowser.get()
        except webbrowser.Error:  # a machine without one
            return
        webbrowser.open(url)
