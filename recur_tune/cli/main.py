"""`recur-tune`: registers every command, and turns every failure into a sentence and an exit code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from recur_tune.cli.budget import budget
from recur_tune.cli.confirm import confirm
from recur_tune.cli.continuing import continue_command
from recur_tune.cli.cost import cost
from recur_tune.cli.dashboards import dashboards
from recur_tune.cli.data import data
from recur_tune.cli.evaluate import evaluate
from recur_tune.cli.export import export
from recur_tune.cli.generate import generate
from recur_tune.cli.look import look
from recur_tune.cli.manage import remove, rename
from recur_tune.cli.repair import repair
from recur_tune.cli.report import compare, report
from recur_tune.cli.results import front_command, status
from recur_tune.cli.search import resume, search, stop
from recur_tune.cli.slurm import cluster, grow, logs, tunnel
from recur_tune.cli.track import track
from recur_tune.cli.train import pretrain, train
from recur_tune.cli.trial import add, end, trial
from recur_tune.cli.ui import ui
from recur_tune.common.deprecated import DeprecatedName
from recur_tune.common.errors import UserError
from recur_tune.config.trial import COMMON
from recur_tune.recurrences import registry as recurrences
from recur_tune.tasks import registry as tasks

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="recur-tune")
def cli() -> None:
    """Add recurrence to a pretrained language model, and measure its quality against compute and memory.

    \b
    A Pareto front of quality against compute and memory, offline, in about three minutes:
      recur-tune search
      recur-tune status
      recur-tune front NAME --under flops_per_token=330k
      recur-tune confirm NAME --seeds 3

    \b
    One trial at a time:
      recur-tune pretrain --preset tiny --corpus tales --out runs/base
      recur-tune train --base runs/base --corpus tales --recurrence cache --cache-rows 16 \\
          --window 24 --bptt-windows 4 --tokens 50k --out runs/a
      recur-tune train --base runs/base --corpus tales --recurrence none \\
          --window 24 --bptt-windows 4 --tokens 50k --out runs/plain
      recur-tune eval runs/a --split test
      recur-tune generate runs/a --prompt "Ada mended the sail. " --tokens 200
      recur-tune continue runs/a runs/plain --tokens 500
      recur-tune look runs/a --against runs/plain
      recur-tune budget runs/a --against runs/plain
      recur-tune cost --base gpt2 --window 300 --overlap 30
    """
    recurrences.check(reserved=COMMON | tasks.FIELDS.keys())
    tasks.check(reserved=COMMON | recurrences.FIELDS.keys())


for command in (
    search, resume, stop, status, front_command, confirm, trial, add, end, report, compare, ui, dashboards, export,
    track, rename, remove, repair,
    grow, logs, tunnel, cluster, pretrain, train, evaluate, generate, continue_command, look, budget,
    cost, data,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    """Run a command; a user's mistakes are a sentence each on stderr and exit code 2, never a traceback."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", DeprecatedName)
            warnings.showwarning = partial(_show, warnings.showwarning)
            code = cli.main(args=sys.argv[1:] or ["--help"], standalone_mode=False)
    except UserError as error:
        code = _say(str(error), error.exit_code)
    except click.ClickException as error:
        code = _say(error.format_message(), UserError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = _say("interrupted.", INTERRUPTED)
    sys.exit(code or 0)


def _show(usual: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print the warning about an old name as a sentence, without a line of code."""
    if issubclass(category, DeprecatedName):
        click.echo(f"recur-tune: {message}", err=True)
    else:
        usual(message, category, *place)


def _say(message: str, code: int) -> int:
    for line in message.splitlines() or [""]:
        click.echo(f"recur-tune: {line}", err=True)
    return code


if __name__ == "__main__":
    main()
