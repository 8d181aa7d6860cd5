"""`recur-tune track`: deliver to MLflow, rebuild its database, write TensorBoard's files."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path

import click

from recur_tune.cli.display import note, stderr
from recur_tune.cli.options import results_option
from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory, results_folder, searches_in


@click.command()
@click.argument("name", required=False)
@click.option(
    "--tensorboard", metavar="FOLDER", type=click.Path(path_type=Path),
    help="Write TensorBoard's event files there instead, also of a running search.",
)  # fmt: skip
@click.option("--rebuild", is_flag=True, help="Rebuild the results folder's database from its searches' logs.")
@results_option
def track(name: str | None, tensorboard: Path | None, rebuild: bool, results: Path | None) -> None:
    """Deliver to MLflow what it does not have yet, as after its server was down.

    A running search delivers by itself. Nothing is lost that could not be delivered: the search's log has it. --rebuild
    builds a damaged database again; the old one stays beside it, in a hidden folder.

    \b
      recur-tune track books
      recur-tune track books --tensorboard runs/tensorboard
      recur-tune track --rebuild
    """
    from recur_tune.tracking.tensorboard import write_event_files

    folder = results_folder(results)
    if rebuild:
        if name or tensorboard:
            raise UserError("rebuild: it is for all searches of the results folder; give no name and no other option.")
        _rebuild(folder)
        return
    if name is None:
        raise UserError("name: say which search, as `recur-tune track books`; --rebuild alone is for all of them.")
    directory = SearchDirectory.open(folder, name)
    if tensorboard is not None:
        click.echo(write_event_files(directory, tensorboard))
        stderr.print(f"next:  tensorboard --logdir {shlex.quote(str(tensorboard))}", soft_wrap=True)
        return
    _check_idle(directory)
    with directory.hold_lease():  # two deliveries at once would create runs twice
        stderr.print(f"all delivered to {_deliver(directory)}")


def _rebuild(results: Path) -> None:
    from recur_tune.tracking.mlflow.database import set_aside

    inside = [directory for directory in searches_in(results) if directory.spec.tracking is None]
    if not inside:
        raise UserError(f"results: no search in {results} has its runs there; there is nothing to rebuild.")
    with ExitStack() as idle:
        for directory in inside:
            _check_idle(directory)
            idle.enter_context(directory.hold_lease())
        if aside := set_aside(results):
            note(f"the former files are in {aside}; delete them when no run is missing.")
        for directory in inside:
            _deliver(directory)
            stderr.print(f"{directory.name} is delivered.")


def _check_idle(directory: SearchDirectory) -> None:
    if directory.is_running:
        raise UserError(f"name: {directory.name} is running, and delivers by itself.")


def _deliver(directory: SearchDirectory) -> str:
    from recur_tune.tracking.mlflow.tracker import Tracker

    with stderr.status(f"delivering {directory.name} …"):
        tracker = Tracker(directory)
        tracker.deliver()
        tracker.log_files(sorted(directory.path.glob("front.*")))
    return tracker.uri
