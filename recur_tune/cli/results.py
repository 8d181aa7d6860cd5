"""`recur-tune status`, `front`, `export` and `track`: what a search has found, read from its directory."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from recur_tune.cli.display import note, stderr, stdout, table_by_name
from recur_tune.cli.options import as_json, command_line, print_json, results_option
from recur_tune.cli.slurm import follow_search, queue_lines
from recur_tune.cli.trials import objective_columns, roles, trial_table
from recur_tune.cli.watch import Watch
from recur_tune.errors import UserError
from recur_tune.files import whole_folder
from recur_tune.searching.directory import MODEL, SearchDirectory, results_folder, searches_in
from recur_tune.searching.objectives import OBJECTIVES
from recur_tune.searching.spec import SearchSpec
from recur_tune.searching.state import SearchState, TrialRecord
from recur_tune.spec import nearest, write_yaml
from recur_tune.units import format_duration


@click.command()
@click.argument("name", required=False)
@click.option("--follow", is_flag=True, help="Watch it live until it ends; Ctrl-C only stops the watching.")
@results_option
@as_json
def status(name: str | None, follow: bool, results: Path | None, as_json: bool) -> None:
    """Tell how every search is doing, or one and each of its trials.

    A search is running, finished, stopped (by Ctrl-C, `recur-tune stop` or its time) or interrupted (its process is
    gone); all but the running ones can be resumed.

    \b
      recur-tune status
      recur-tune status books --follow
    """
    folder = results_folder(results)
    if name is None:
        if follow:
            raise UserError("follow: say which search to watch, as `recur-tune status NAME --follow`.")
        _tell_all(folder, as_json)
        return
    directory = SearchDirectory.open(folder, name)
    if follow:
        follow_search(directory)
    summary = _summary(directory)
    if as_json:
        print_json(summary)
        return
    _print_summaries([summary])
    for line in summary["queue"]:
        stdout.print(line, soft_wrap=True)
    for notice in summary["notices"]:
        note(notice)
    watch = Watch(directory)
    if watch.state.trials:
        stdout.print(watch.table(rows=len(watch.state.trials), width=stdout.width))


def _tell_all(folder: Path, as_json: bool) -> None:
    summaries, unreadable = [], []
    for found in searches_in(folder):
        try:
            summaries.append(_summary(SearchDirectory.open(folder, found.name)))
        except UserError as error:  # one bad search hides no other
            unreadable.append({"search": found.name, "error": str(error)})
    if as_json:
        print_json({"results": str(folder), "searches": summaries, "unreadable": unreadable})
        return
    if summaries:
        _print_summaries(summaries)
    elif not unreadable:
        stdout.print(f"no searches in {folder}; `recur-tune search` makes one.", soft_wrap=True)
    for one in unreadable:
        note(f"{one['search']}: {one['error']}")


def _print_summaries(summaries: list[dict[str, Any]]) -> None:
    table = table_by_name(["search", "status", "trials", "front", "hypervolume", "time"])
    for one in summaries:
        volume = "-" if one["hypervolume"] is None else f"{one['hypervolume']:.4f}"
        trials = ", ".join(f"{count} {state}" for state, count in one["trials"].items()) or "none yet"
        table.add_row(
            one["search"], one["status"], trials, str(one["on_front"]), volume, format_duration(one["seconds"])
        )
    stdout.print(table)


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
        "queue": queue_lines(directory),
    }  # fmt: skip


@click.command("front")
@click.argument("name")
@click.option("--objectives", help=f"Others than the search's own, with commas between: {', '.join(OBJECTIVES)}.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values on stdout.")
@results_option
@as_json
def front_command(name: str, objectives: str | None, as_csv: bool, results: Path | None, as_json: bool) -> None:
    """Print a search's front: the trials at full budget that no other beats in every objective, best quality first.

    The table leaves out what does not fit the screen; --csv and --json have all of it.

    \b
      recur-tune front books
      recur-tune front books --objectives bits_per_byte,peak_memory --csv > front.csv
    """
    from recur_tune.searching.front import front_rows

    directory = SearchDirectory.open(results_folder(results), name)
    state, chosen = directory.state(), _objectives(directory, objectives)
    rows = front_rows(state, chosen)
    if as_json and as_csv:
        raise UserError("csv: --json is given too; choose one of them.")
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
    """Copy the trained model of a trial, in Hugging Face's format.

    Models are kept of the trials on the front, unless the search says `keep: all` or `keep: none`.

    \b
      recur-tune export books --trial T7 --to models/books
      recur-tune eval models/books --split test
    """
    directory = SearchDirectory.open(results_folder(results), name)
    state = directory.state()
    digits = trial.upper().removeprefix("T")
    if not digits.isdecimal() or int(digits) not in state.trials:
        raise UserError(f"trial: {name} has no trial {trial!r}; `recur-tune front {name}` lists the best.")
    record = state.trials[int(digits)]
    model = directory.trial(record.number) / MODEL
    if not model.is_dir():
        raise UserError(f"trial: {record.name} {_why_no_model(record, directory.spec)}.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"to: {target} is there already and not empty; give a new folder.")
    with whole_folder(target) as partial:
        for file in model.iterdir():
            shutil.copy(file, partial)
        _add_code(partial)
        write_yaml(partial / "trial.yaml", directory.with_own_base(directory.spec.trial_config(record.params)))
    stderr.print(f"next:  recur-tune eval {target} --split test", soft_wrap=True)


def _add_code(model: Path) -> None:
    """A recurrent model that was saved without its code gets it, so that it opens where recur-tune is not installed."""
    settings = json.loads((model / "config.json").read_text())
    if settings.get("recurrence") and "auto_map" not in settings:
        from recur_tune.model.portable import write_code

        write_code(model)


def _why_no_model(record: TrialRecord, spec: SearchSpec) -> str:
    if record.state != "complete":
        return f"is {record.state}, and only a trial that has reached its full budget has a model to export"
    if spec.keep == "none":
        return "has left no model, since the search keeps none (keep: none)"
    return "is not on the front, and only models on the front are kept (keep: all keeps every one)"


@click.command()
@click.argument("name")
@results_option
def track(name: str, results: Path | None) -> None:
    """Deliver to MLflow what it has not got yet, say after its server was away.

    A running search delivers by itself, and what could not be delivered is never lost: the search's own log has it.

    \b
      recur-tune track books
    """
    from recur_tune.tracking.mlflow import Tracker

    directory = SearchDirectory.open(results_folder(results), name)
    if directory.is_running:
        raise UserError(f"name: {name} is running, and delivers by itself.")
    with directory.lock(), stderr.status("delivering …"):  # two who deliver at once would make runs twice
        tracker = Tracker(directory)
        tracker.deliver()
        tracker.log_files(sorted(directory.path.glob("front.*")))
    stderr.print(f"all delivered to {tracker.uri}")


def print_front(state: SearchState, objectives: tuple[str, ...]) -> None:
    """The front as a table."""
    from recur_tune.searching.front import front

    best = front(state.trials.values(), objectives)
    if not best:
        stdout.print("no trial has reached the full budget yet.")
        return
    names: list[Text | str] = [trial.name for trial in best]
    table, left_out = trial_table(best, {"trial": names, **objective_columns(best, objectives)}, stdout.width)
    stdout.print(table)
    if words := roles(best):
        stdout.print(words)
    if left_out:
        note(f"{', '.join(left_out)} did not fit in here; --csv and --json have all.")


def print_end(directory: SearchDirectory, state: SearchState) -> None:
    """The result of a search and what to type next."""
    from recur_tune.searching.front import front
    from recur_tune.tracking.mlflow import is_server, tracking_uri, without_password

    spec = directory.spec
    watch = Watch(directory)
    stdout.print(f"{directory.name}: {watch.headline()}, {format_duration(state.active_seconds)}", style="bold")
    print_front(state, spec.objectives)
    best, uri = front(state.trials.values(), spec.objectives), tracking_uri(directory)
    lines = [f"picture:  {directory.path / 'front.png'}", f"in a browser:  {directory.path / 'front.html'}"]
    lines.append(f"all of it on one page:  {command_line('report', directory)}")
    lines.append(f"compare runs:  {without_password(uri) if is_server(uri) else command_line('ui', directory)}")
    if best and spec.keep != "none":
        trial = best[0].name
        lines.append(f"take a model:  {command_line('export', directory)} --trial {trial} --to models/{trial}")
    if state.status == "finished":
        more = 2 * max(spec.budget.trials or 0, state.trained)
        lines.append(f"more trials:  {command_line('resume', directory)} --trials {more}")
    for line in lines:
        stderr.print(line, soft_wrap=True)
