"""`recur-tune ui`: the pages on which searches are watched and runs compared."""

from __future__ import annotations

import tempfile
import time
import webbrowser
from pathlib import Path

import click

from recur_tune.cli.display import note, stderr
from recur_tune.cli.options import results_option
from recur_tune.errors import UserError
from recur_tune.searching.directory import SearchDirectory, results_folder, searches_in
from recur_tune.training.interrupt import stop_requests


@click.command()
@click.argument("name", required=False)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=5000, show_default=True, help="For MLflow; the next free."
)
@click.option("--no-browser", is_flag=True, help="Only print the addresses.")
@results_option
def ui(name: str | None, port: int, no_browser: bool, results: Path | None) -> None:
    """Show the runs of all searches, or one's, in MLflow's pages, and say where Ray's dashboard is.

    Starts an MLflow server on localhost over the results folder's runs, unless the search has a server of its own.
    Ctrl-C ends it.

    \b
      recur-tune ui
      recur-tune ui books --port 8000
    """
    from recur_tune.cluster.ray_cluster import ray_token
    from recur_tune.tracking.mlflow import Tracker
    from recur_tune.tracking.places import TRAINING, is_server, tracking_uri, without_password

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
    _serve(uri, port, f"{tracker.page}?{TRAINING}" if name else tracker.run_list, no_browser)


def _serve(uri: str, port: int, page: str, no_browser: bool) -> None:
    """On the wanted port or the next that is free, also where somebody is quicker than a server that takes seconds."""
    from recur_tune.localhost import free_port_from
    from recur_tune.tracking.server import PortTaken

    chosen = free_port_from(port)
    while True:
        if chosen != port:
            note(f"port {port} is taken; this is {chosen}.")
        try:
            return _serve_at(chosen, uri, page, no_browser)
        except PortTaken:
            chosen = free_port_from(chosen + 1)


def _serve_at(chosen: int, uri: str, page: str, no_browser: bool) -> None:
    from recur_tune.tracking.server import mlflow_server, wait_until_it_answers

    with tempfile.TemporaryDirectory(prefix="recur-tune-ui-") as folder:
        log = Path(folder) / "mlflow.log"
        with mlflow_server(uri, chosen, log) as server:
            with stderr.status("starting MLflow …"):
                wait_until_it_answers(server, chosen, uri, log)
            _show(f"http://127.0.0.1:{chosen}/{page}", no_browser)
            stderr.print("Ctrl-C ends it.")
            with stop_requests() as asked:  # by SIGTERM as well: the server must not outlive us
                while not asked():
                    if server.poll() is not None:
                        raise UserError("MLflow's server has ended by itself.")
                    time.sleep(0.5)


def _show(url: str, no_browser: bool) -> None:
    click.echo(url)
    if not no_browser:
        try:
            webbrowser.get()
        except webbrowser.Error:  # a machine without one
            return
        webbrowser.open(url)
