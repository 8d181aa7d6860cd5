"""`recur-tune search`, `resume` and `stop`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from recur_tune.cli.display import note, stderr, stdout
from recur_tune.cli.options import as_json, print_json
from recur_tune.errors import UserError
from recur_tune.searching.directory import SearchDirectory, results_folder
from recur_tune.searching.shipped import find_space
from recur_tune.searching.spec import SearchSpec, with_overrides
from recur_tune.spec import parse, read_yaml

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])

results_option = click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Folder of all searches. [default: $RECUR_TUNE_RESULTS or ./results]",
)


def _run_options(command: AnyCommand) -> AnyCommand:
    options = [
        click.option("--trials", type=click.IntRange(min=1), help="Trials to train; short for --set budget.trials=N."),
        click.option("--time", "wall_clock", help="Time for all, as 30m or 8h; short for --set budget.wall_clock=…"),
        click.option(
            "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change any field, as budget.tokens=20M."
        ),
        click.option("--address", help="A Ray cluster: auto, HOST:PORT, ray://HOST:10001 or http://HOST:8265. "
                                       "[default: one of our own, here]"),
        results_option,
        as_json,
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("space", required=False)
@click.option("--name", help="What to call it. [default: the file's name and the time]")
@click.option("--dry-run", is_flag=True, help="Check everything, show what would be searched, start nothing.")
@_run_options
def search(
    space: str | None, name: str | None, dry_run: bool, trials: int | None, wall_clock: str | None,
    settings: tuple[str, ...], address: str | None, results: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Search a space for its front of quality against cost.

    SPACE is a YAML file, or the name of one that comes with recur-tune: quickstart (the default; nothing is
    downloaded), wikitext-103, pg19, enwik8-bytes, enwik8-bpe. Trials run on all of this machine, or on the cluster
    at --address. Ctrl-C once saves the running trials and stops, twice stops at once; `recur-tune resume` goes on.

    \b
      recur-tune search
      recur-tune search search_spaces/pg19.yaml --name books --trials 200 --set budget.tokens=20M
      recur-tune search pg19 --name books --address auto
    """
    file = find_space(space or "quickstart")
    spec = parse(SearchSpec, with_overrides(read_yaml(file), _overrides(trials, wall_clock, settings)))
    if dry_run:
        _show(file, spec, as_json)
        return
    chosen = name or f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = results_folder(results)
    _check_here(spec, address)
    _run(SearchDirectory.create(folder, chosen, spec), address, as_json)


@click.command()
@click.argument("name")
@_run_options
def resume(
    name: str, trials: int | None, wall_clock: str | None, settings: tuple[str, ...],
    address: str | None, results: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Go on with a search that was stopped or lost, or give a finished one more trials.

    Finished trials stay as they are; unfinished ones go on from their last checkpoint.

    \b
      recur-tune resume books
      recur-tune resume books --trials 300
    """
    directory = SearchDirectory.open(results_folder(results), name)
    overrides = _overrides(trials, wall_clock, settings)
    if overrides:
        fields = directory.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        directory.change_spec(parse(SearchSpec, with_overrides(fields, overrides)))
    _run(directory, address, as_json)


@click.command()
@click.argument("name")
@results_option
def stop(name: str, results: Path | None) -> None:
    """Ask a running search to save its trials and stop, from wherever its directory is seen."""
    directory = SearchDirectory.open(results_folder(results), name)
    if not directory.is_running:
        raise UserError(f"name: {name} is not running, so there is nothing to stop.")
    directory.request_stop()
    with stderr.status(f"{name} is saving its trials … (Ctrl-C leaves it to do so alone)"):
        while directory.is_running:
            time.sleep(0.5)
    stderr.print(f"stopped; go on with:  recur-tune resume {name}", highlight=False)


def _run(directory: SearchDirectory, address: str | None, as_json: bool) -> None:
    from recur_tune.cli.results import print_end
    from recur_tune.cli.watch import Watch

    if address and address.startswith("http"):
        from recur_tune.cluster.jobs import run_search_as_job

        run_search_as_job(directory, address, lambda line: stderr.print(line, highlight=False, soft_wrap=True))
        return
    with Watch(directory) as watch:
        watch.stage("loading …")
        if address and address.startswith("ray://"):
            from recur_tune.cluster.client import run_search_there

            state = run_search_there(directory, address, watch)
        else:
            from recur_tune.searching.run import run_search

            state = run_search(directory, address, watch)
    if as_json:
        from recur_tune.searching.front import front_rows

        print_json(
            {"search": directory.name, "status": state.status, "front": front_rows(state, directory.spec.objectives)}
        )
    else:
        print_end(directory, state)
    if state.status != "finished":
        stderr.print(f"stopped and saved; go on with:  recur-tune resume {directory.name}", highlight=False)
        raise KeyboardInterrupt


def _overrides(trials: int | None, wall_clock: str | None, settings: tuple[str, ...]) -> list[tuple[str, Any]]:
    overrides: list[tuple[str, Any]] = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UserError(f"set: {setting!r} is not of the form KEY=VALUE, as budget.tokens=20M.")
        try:
            overrides.append((key, yaml.safe_load(value)))
        except yaml.YAMLError:
            raise UserError(f"set: {value!r} is no readable value for {key}.") from None
    if trials is not None:
        overrides.append(("budget.trials", trials))
    if wall_clock is not None:
        overrides.append(("budget.wall_clock", wall_clock))
    return overrides


def _check_here(spec: SearchSpec, address: str | None) -> None:
    """Refuse what cannot work before a directory is made for it."""
    with stderr.status("checking the space …"):
        from recur_tune.cluster.ray_cluster import check_reachable, check_this_machine
        from recur_tune.searching.preparation import check_shapes

        if address is None:
            check_this_machine(spec.resources)
        else:
            check_reachable(address)
        check_shapes(spec)


def _show(file: Path, spec: SearchSpec, as_json: bool) -> None:
    from recur_tune.searching.directory import dump_spec
    from recur_tune.searching.preparation import Prices, check_shapes, worst_costs
    from recur_tune.searching.sampler import first_points

    with stderr.status("pricing the corners of the space …"):
        check_shapes(spec)
        worst = worst_costs(spec, Prices(spec.resources.workers), lambda config: config)
    if as_json:
        print_json({"spec": yaml.safe_load(dump_spec(spec)), "first": first_points(spec), "worst": worst})
        return
    stdout.print(f"# {file}, with every default", highlight=False)
    stdout.print(dump_spec(spec), highlight=False)
    for role, point in first_points(spec).items():
        stdout.print(f"# begins with the {role}: {point}", highlight=False, soft_wrap=True)
    stdout.print(f"# trials are compared after {spec.budget.rung_tokens} tokens", highlight=False)
    note("nothing was started.")
