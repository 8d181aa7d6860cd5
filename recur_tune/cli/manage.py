"""`recur-tune remove` and `rename`."""

from __future__ import annotations

from pathlib import Path

import click

from recur_tune.cli.display import note, stderr
from recur_tune.cli.options import results_option
from recur_tune.common.errors import UserError
from recur_tune.common.units import counted, format_size
from recur_tune.search.record.directory import SearchDirectory, results_folder
from recur_tune.sites.slurm.search_jobs import check_not_queued


@click.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@results_option
def remove(name: str, yes: bool, results: Path | None) -> None:
    """Delete a search with its models and its runs in MLflow, which `mlflow` itself can still restore.

    \b
      recur-tune remove books
    """
    directory = _idle(name, results)
    trials, size = len(directory.state().trials), _size(directory.path)
    if not yes and not agreed(f"remove {name} with {counted(trials, 'trial')} and {format_size(size)} for good?"):
        stderr.print("nothing was removed.")
        return
    from recur_tune.tracking.mlflow.housekeeping import remove_runs
    from recur_tune.tracking.mlflow.tracker import DeliveryFailed

    try:
        with stderr.status("removing its runs from MLflow …"):
            remove_runs(directory)
    except DeliveryFailed as error:
        note(f"its runs stay in MLflow: {error}")
    directory.remove()
    stderr.print(f"removed {name}.")


@click.command()
@click.argument("name")
@click.argument("new_name")
@results_option
def rename(name: str, new_name: str, results: Path | None) -> None:
    """Give a search another name, in MLflow too.

    \b
      recur-tune rename books-20261116-101500 books
    """
    directory = _idle(name, results)
    renamed = directory.rename(new_name)
    from recur_tune.tracking.mlflow.housekeeping import rename_runs
    from recur_tune.tracking.mlflow.tracker import DeliveryFailed

    try:
        with stderr.status("renaming its runs in MLflow …"):
            rename_runs(renamed)
    except DeliveryFailed as error:
        note(f"in MLflow it keeps its old name: {error}")
    stderr.print(f"{name} is {new_name} now.")


def agreed(question: str) -> bool:
    """Whether the person at the terminal agrees."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        raise UserError("yes: there is no terminal to answer on; --yes answers beforehand.") from None


def _idle(name: str, results: Path | None) -> SearchDirectory:
    directory = SearchDirectory.open(results_folder(results), name)
    if directory.is_running:
        raise UserError(f"name: {name} is running; `recur-tune stop {name}` pauses it.")
    check_not_queued(directory)
    return directory


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
