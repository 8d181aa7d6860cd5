"""`recur-tune ui`: the pages on which searches are watched and runs compared."""

from __future__ import annotations

import os
import tempfile
import time
import webbrowser
from contextlib import ExitStack
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


def _serve(uri: str, wanted: int, page: str, no_browser: bool) -> None:
    from recur_tune.localhost import last_words
    from recur_tune.tracking.server import answering_server

    file, name = tempfile.mkstemp(prefix="recur-tune-ui-", suffix=".log")
    os.close(file)
    log = Path(name)
    with ExitStack() as until_the_end:
        with stderr.status("starting MLflow …"):
            server, port = until_the_end.enter_context(answering_server(uri, wanted, log))
        if port != wanted:
            note(f"port {wanted} is taken; this is {port}.")
        asked = until_the_end.enter_context(stop_requests())  # by SIGTERM as well: the server must not outlive us
        _show(f"http://127.0.0.1:{port}/{page}", no_browser)
        stderr.print("Ctrl-C ends it.")
        while not asked():
            if server.poll() is not None:
                raise UserError(f"MLflow's server has ended by itself {last_words(log)}.")
            time.sleep(0.5)
    log.unlink()  # of a server that fails it stays: that is what one wants to see


def _show(url: str, no_browser: bool) -> None:
    click.echo(url)
    if not no_browser:
        try:
            webbrowser.get()
        except webbrowser.Error:  # a machine without one
            return
        webbrowser.open(url)
