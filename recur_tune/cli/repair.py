"""`recur-tune repair`: mend a search whose log is damaged."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import click

from recur_tune.cli.display import note, stderr, stdout
from recur_tune.cli.manage import agreed
from recur_tune.cli.options import command_line, results_option
from recur_tune.search.record.directory import SearchDirectory, results_folder
from recur_tune.search.record.recovery import Book


@click.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what is damaged and what can be given back.")
@results_option
def repair(name: str, yes: bool, dry_run: bool, results: Path | None) -> None:
    """Repair a search whose log has damaged or missing lines.

    It says what is damaged and what would be lost, and asks. Then it puts damaged lines aside in events.damaged beside
    the log, corrects those in which a single byte is wrong, and fills in what the trials' folders, Optuna's study and
    MLflow know.

    \b
      recur-tune repair books --dry-run
      recur-tune repair books
    """
    directory = SearchDirectory.open(results_folder(results), name)
    directory.check_idle()
    with directory.hold_lease():
        with stderr.status("comparing the log with the other records …"):
            from recur_tune.search.run.preparation import Prices
            from recur_tune.search.run.repair import ASIDE, plan_repair

            price = Prices(directory.spec.resources)
            found = plan_repair(directory, price, lambda settled: _mlflow(directory, settled))
        if not found.is_needed:
            stderr.print(f"{name} needs no repair: nothing is damaged, and all records agree.")
            return
        for line in found.in_words():
            stdout.print(line, soft_wrap=True)
        if dry_run or not (yes or agreed(f"repair {name} in this way?")):
            stderr.print("nothing was changed.")
            return
        found.do()
    aside = f"; damaged lines lie in {directory.path / ASIDE}" if found.lines else ""
    stderr.print(f"{name} is repaired{aside}.", soft_wrap=True)
    stderr.print(f"continue with:  {command_line('resume', directory)}", soft_wrap=True)


def _mlflow(directory: SearchDirectory, settled: Collection[int]) -> Sequence[Book]:
    """MLflow's book about all but the settled trials, where it can be asked."""
    from recur_tune.tracking.mlflow.calls import reason
    from recur_tune.tracking.mlflow.recovery import mlflow_book

    try:
        return [mlflow_book(directory, settled)]
    except Exception as error:  # MLflow, databases and networks raise all kinds
        note(f"MLflow could not be asked ({reason(error)}); only the search's own folder is used.")
        return []
