"""`recur-tune status`, `front`, `export` and `track`: what a search has found, read from its directory."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from recur_tune.cli.display import stderr, stdout
from recur_tune.cli.options import as_json, print_json
from recur_tune.cli.search import results_option
from recur_tune.cli.watch import Watch, describe_trial
from recur_tune.errors import UserError
from recur_tune.searching.directory import MODEL, SearchDirectory, results_folder, searches_in
from recur_tune.searching.objectives import OBJECTIVES
from recur_tune.searching.state import SearchState
from recur_tune.spec import nearest, write_yaml
from recur_tune.units import format_count, format_duration


@click.command()
@click.argument("name", required=False)
@click.option("--follow", is_flag=True, help="Watch it live until it ends; Ctrl-C only stops the watching.")
@results_option
@as_json
def status(name: str | None, follow: bool, results: Path | None, as_json: bool) -> None:
    """Tell how a search, or every search, is doing."""
    folder = results_folder(results)
    chosen = [SearchDirectory.open(folder, name)] if name else searches_in(folder)
    if follow:
        if not name:
            raise UserError("follow: name the search to watch.")
        _follow(chosen[0])
    summaries = [_summary(directory) for directory in chosen]
    if as_json:
        print_json(summaries[0] if name else {"results": str(folder), "searches": summaries})
        return
    if not chosen:
        stdout.print(f"no searches in {folder}; `recur-tune search` makes one.", highlight=False)
        return
    table = Table("search", "status", "trials", "front", "hypervolume", "time", box=None, pad_edge=False)
    for one in summaries:
        volume = "-" if one["hypervolume"] is None else f"{one['hypervolume']:.4f}"
        trials = ", ".join(f"{count} {state}" for state, count in one["trials"].items()) or "none yet"
        table.add_row(
            one["search"], one["status"], trials, str(one["on_front"]), volume, format_duration(one["seconds"])
        )
    stdout.print(table)
    if name:
        watch = Watch(chosen[0])
        watch.catch_up()
        stdout.print(watch.table(rows=1000))


def _follow(directory: SearchDirectory) -> None:
    try:
        with Watch(directory) as watch:
            watch.searching()
            while directory.is_running:
                import time

                time.sleep(0.5)
    except KeyboardInterrupt:
        stderr.print(f"{directory.name} goes on.", highlight=False)


def _summary(directory: SearchDirectory) -> dict[str, Any]:
    from recur_tune.searching.front import front, search_hypervolume

    state, spec = directory.state(), directory.spec
    counts: dict[str, int] = {}
    for trial in state.trials.values():
        counts[trial.state] = counts.get(trial.state, 0) + 1
    running = directory.is_running
    word = "running" if running else "interrupted" if state.status == "started" else state.status
    return {
        "search": directory.name, "folder": str(directory.path), "status": word, "trials": counts,
        "on_front": len(front(state.trials.values(), spec.objectives)),
        "hypervolume": search_hypervolume(state, spec.objectives),
        "seconds": state.active_seconds, "notices": state.notices, "links": state.links if running else {},
    }  # fmt: skip


@click.command("front")
@click.argument("name")
@click.option("--objectives", help="Others than the search's own, as perplexity,flops_per_token.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values on stdout.")
@results_option
@as_json
def front_command(name: str, objectives: str | None, as_csv: bool, results: Path | None, as_json: bool) -> None:
    """Print a search's front: the trials at full budget that no other beats in every objective."""
    from recur_tune.searching.front import front_rows

    directory = SearchDirectory.open(results_folder(results), name)
    state, chosen = directory.state(), _objectives(directory, objectives)
    rows = front_rows(state, chosen)
    if as_json:
        print_json({"search": name, "objectives": list(chosen), "front": rows})
    elif as_csv:
        fields = directory.spec.parsed_space.names
        writer = csv.writer(sys.stdout)
        writer.writerow(["trial", *chosen, "tokens", *fields])
        for row in rows:
            values = [row[objective] for objective in chosen]
            writer.writerow([row["trial"], *values, row["tokens"], *(row["params"].get(field, "") for field in fields)])
    else:
        print_front(state, chosen)


def _objectives(directory: SearchDirectory, chosen: str | None) -> tuple[str, ...]:
    if chosen is None:
        return directory.spec.objectives
    names = tuple(name.strip() for name in chosen.split(","))
    for name in names:
        if name not in OBJECTIVES:
            raise UserError(f"objectives: there is no {name!r}; {nearest(name, OBJECTIVES)}")
    return names


@click.command()
@click.argument("name")
@click.option("--trial", required=True, help="Which, as T7 or 7.")
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="A new folder.")
@results_option
def export(name: str, trial: str, target: Path, results: Path | None) -> None:
    """Copy the trained model of a point on the front, in Hugging Face's format."""
    directory = SearchDirectory.open(results_folder(results), name)
    state = directory.state()
    digits = trial.upper().removeprefix("T")
    if not digits.isdecimal() or int(digits) not in state.trials:
        raise UserError(f"trial: {name} has no trial {trial!r}; `recur-tune front {name}` lists the best.")
    record = state.trials[int(digits)]
    model = directory.trial(record.number) / MODEL
    if not model.is_dir():
        why = "is not on the front" if record.state == "complete" else f"is {record.state}"
        raise UserError(
            f"trial: {record.name} {why}, and only models on the front are kept (keep: all keeps every one)."
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"to: {target} is there already and not empty; give a new folder.")
    from recur_tune.files import whole_folder

    with whole_folder(target) as partial:
        for file in model.iterdir():
            shutil.copy(file, partial)
        write_yaml(partial / "trial.yaml", directory.with_own_base(directory.spec.trial_config(record.params)))
    stderr.print(f"next:  recur-tune eval {target} --split test", highlight=False)


@click.command()
@click.argument("name")
@results_option
def track(name: str, results: Path | None) -> None:
    """Deliver to MLflow what it has not got yet, say after its server was away."""
    from recur_tune.tracking.mlflow import Tracker, Undelivered, tracking_uri

    directory = SearchDirectory.open(results_folder(results), name)
    if directory.is_running:
        raise UserError(f"name: {name} is running, and delivers by itself.")
    try:
        with stderr.status("delivering …"):
            tracker = Tracker(directory)
            while not tracker.deliver():
                pass
            tracker.log_files(front_files(directory))
    except Undelivered as error:
        raise UserError(f"tracking: {error}") from None
    stderr.print(f"all delivered to {tracking_uri(directory)}", highlight=False)


def front_files(directory: SearchDirectory) -> list[Path]:
    """The front as it was written down."""
    return sorted(directory.path.glob("front.*"))


def print_front(state: SearchState, objectives: tuple[str, ...]) -> None:
    """The front as a table."""
    from recur_tune.searching.front import front

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("trial")
    for name in objectives:
        table.add_column(OBJECTIVES[name].title, justify="right", no_wrap=True)
    table.add_column("tokens", justify="right")
    table.add_column("configuration")
    best = front(state.trials.values(), objectives)
    for trial in best:
        values = [OBJECTIVES[name].format(trial.value(name) or 0.0) for name in objectives]
        table.add_row(trial.name, *values, format_count(trial.tokens), describe_trial(trial))
    stdout.print(table if best else "no trial has reached the full budget yet.")


def print_end(directory: SearchDirectory, state: SearchState) -> None:
    """The result of a search and what to type next."""
    from recur_tune.searching.front import front
    from recur_tune.tracking.mlflow import tracking_uri

    objectives = directory.spec.objectives
    watch = Watch(directory)
    watch.catch_up()
    stdout.print(
        f"{directory.name}: {watch.headline()}, {format_duration(state.active_seconds)}", style="bold", highlight=False
    )
    print_front(state, objectives)
    best = front(state.trials.values(), objectives)
    name, uri = directory.name, tracking_uri(directory)
    lines = [f"picture:  {directory.path / 'front.png'}", f"in a browser:  {directory.path / 'front.html'}"]
    lines.append(f"compare runs:  mlflow ui --backend-store-uri {uri}" if "://" in uri else f"compare runs:  {uri}")
    if best:
        lines.append(f"take a model:  recur-tune export {name} --trial {best[0].name} --to models/{best[0].name}")
    lines.append(
        f"more trials:  recur-tune resume {name} --trials {2 * (directory.spec.budget.trials or state.trained)}"
    )
    for line in lines:
        stderr.print(line, highlight=False, soft_wrap=True)
