"""`recur-tune status` and `front`: a search's progress and results, read from its directory."""

from __future__ import annotations

import csv
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from recur_tune.cli.confirm import print_confirmation
from recur_tune.cli.decision import print_decision
from recur_tune.cli.display import note, stderr, stdout, table_by_name
from recur_tune.cli.live_view import LiveView
from recur_tune.cli.next_hour import in_words
from recur_tune.cli.options import as_json, command_line, open_search, print_json, results_option, under_option
from recur_tune.cli.submitting import follow_search
from recur_tune.cli.trial_tables import no_better_than_untrained, print_trials, roles
from recur_tune.common.errors import UserError
from recur_tune.common.parsing import nearest
from recur_tune.common.units import format_duration
from recur_tune.search.record.damage import damage_notice
from recur_tune.search.record.directory import SearchDirectory, results_folder, searches_in
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.progress import NextHour, next_hour, status_of
from recur_tune.search.record.requests import trials_wait
from recur_tune.search.record.state import ENDED, SearchState
from recur_tune.sites.slurm.search_jobs import queue_lines

_WORTH_MENTIONING = 10.0  # seconds
_MOST_ROWS = 100  # of a table; the layout of thousands takes seconds


@click.command()
@click.argument("name", required=False)
@click.option("--follow", is_flag=True, help="Watch it live until it ends; Ctrl-C only stops the watching.")
@results_option
@as_json
def status(name: str | None, follow: bool, results: Path | None, as_json: bool) -> None:
    """Show the progress of every search, or of one with its trials.

    A search is preparing (a base is pretrained, a corpus tokenised), running, finished, paused (by Ctrl-C,
    `recur-tune stop` or its time limit) or interrupted (its process died); one that does not run can be resumed.

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
    watch = LiveView(directory)
    summary = _summary(directory, watch.state)
    if as_json:
        print_json(summary)
        return
    _print_summaries([summary])
    for line in summary["queue"]:
        stdout.print(line, soft_wrap=True)
    for line in _besides(summary):
        stdout.print(line, soft_wrap=True)
    for notice in summary["notices"]:
        note(notice)
    note_damage(directory, watch.state)
    if watch.state.trials:
        stdout.print(watch.table(rows=_MOST_ROWS, width=stdout.width))


def note_damage(directory: SearchDirectory, state: SearchState) -> None:
    """Say on stderr which lines of the log are damaged, if any are."""
    if words := damage_notice(directory, state):
        note(words)


def _tell_all(folder: Path, as_json: bool) -> None:
    summaries, unreadable, damage = [], [], []
    for found in searches_in(folder):
        try:
            directory = SearchDirectory.open(folder, found.name)
            state = directory.state()
            summaries.append(_summary(directory, state))
            damage += [words] if (words := damage_notice(directory, state)) else []
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
    for words in damage:
        note(words)


def _print_summaries(summaries: list[dict[str, Any]]) -> None:
    table = table_by_name(["search", "status", "trials", "front", "hypervolume", "time"])
    for one in summaries:
        volume = "-" if one["hypervolume"] is None else f"{one['hypervolume']:.4f}"
        trials = ", ".join(f"{count} {state}" for state, count in one["trials"].items()) or one["stage"] or "none yet"
        table.add_row(
            one["search"],
            one["status"],
            trials,
            str(one["on_front"]),
            volume,
            format_duration(one["seconds"]),
        )
    stdout.print(table)


def _besides(summary: dict[str, Any]) -> Iterator[str]:
    """Lines about preparation, confirmation, the next hour, and waiting trials."""
    if summary["stage"] and summary["trials"]:
        yield f"now: {summary['stage']}"
    if summary["preparation_seconds"] >= _WORTH_MENTIONING:
        took = format_duration(summary["preparation_seconds"])
        yield f"preparation (torch, Ray, corpus, base), besides that time: {took}"
    if repeats := summary["repeats"]:
        ended = sum(count for state, count in repeats.items() if state in ENDED)
        took = format_duration(summary["confirmation_seconds"])
        yield f"confirmation: {ended} of {sum(repeats.values())} trainings ended, {took}"
    if (hour := summary["next_hour"]) and summary["hypervolume"] and summary["status"] != "finished":
        yield in_words(NextHour(**hour), summary["hypervolume"])
    if summary["asked_for"] and summary["status"] != "running":
        yield "a trial that was added waits for `recur-tune resume`"


def _preparation(seconds: float) -> str:
    """The time of the preparation, if it was long."""
    return f" (and {format_duration(seconds)} to prepare)" if seconds >= _WORTH_MENTIONING else ""


def _summary(directory: SearchDirectory, state: SearchState) -> dict[str, Any]:
    from recur_tune.search.record.front import front, search_hypervolume

    spec = directory.spec
    hour = next_hour(state, spec.budget)
    counts: dict[str, int] = {}
    for trial in state.trials.values():
        counts[trial.state] = counts.get(trial.state, 0) + 1
    running = directory.is_running
    return {
        "search": directory.name, "folder": str(directory.path), "status": status_of(directory, state),
        "trials": counts,
        "stage": state.stage if running else "",
        "on_front": len(front(state.trials.values(), spec.objectives)),
        "hypervolume": search_hypervolume(state, spec.objectives),
        "seconds": state.elapsed(time.time()) if running else state.active_seconds,
        "preparation_seconds": state.prepared(time.time()) if running else state.preparation_seconds,
        "confirmation_seconds": state.confirmation_seconds,
        "repeats": Counter(one.state for one in state.repeats.values()), "asked_for": trials_wait(directory),
        "notices": state.notices, "next_hour": hour and hour._asdict(),
        "links": state.links if running else {},
        "queue": queue_lines(directory),
    }  # fmt: skip


@click.command("front")
@click.argument("name", required=False)
@click.option("--objectives", help=f"Others than the search's own, with commas between: {', '.join(OBJECTIVES)}.")
@under_option
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values on stdout.")
@results_option
@as_json
def front_command(
    name: str | None, objectives: str | None, under: str | None, as_csv: bool, results: Path | None, as_json: bool
) -> None:
    """Print a search's Pareto front: the trials at full budget that no other dominates, best quality first.

    NAME is the latest search by default. With --under: the best trial within limits, and what a little more of each
    cost would improve. The table leaves out
    columns that do not fit the screen; --csv and --json have all.

    \b
      recur-tune front books
      recur-tune front books --under flops_per_token=55M,peak_memory=10GiB
      recur-tune front books --objectives bits_per_byte,peak_memory --csv > front.csv
    """
    from recur_tune.search.record.confirmation import confirmation
    from recur_tune.search.record.front import front_rows

    directory = open_search(results, name)
    state, chosen = directory.state(), _objectives(directory, objectives)
    note_damage(directory, state)
    if as_json and as_csv:
        raise UserError("csv: --json is given too; choose one of them.")
    if under is not None:
        if as_csv:
            raise UserError("csv: --under chooses one trial; leave one of them out, or take --json.")
        print_decision(directory, state, chosen, under, as_json)
        return
    rows = front_rows(state, chosen)
    confirmed = confirmation(state, directory.spec)
    if as_json:
        unconfirmed = [trial.name for trial in confirmed.unconfirmed] if confirmed else []
        told = {"confirmed": confirmed.rows(), "unconfirmed": unconfirmed} if confirmed else {}
        print_json({"search": directory.name, "objectives": list(chosen), "front": rows, **told})
    elif as_csv:
        fields = directory.spec.parsed_space.names
        writer = csv.writer(sys.stdout)
        before = [name for name in chosen if any(name in row.get("untrained", {}) for row in rows)]
        writer.writerow(["trial", *chosen, *(f"untrained_{name}" for name in before), "tokens", *fields])
        for row in rows:
            values = [row[objective] for objective in chosen]
            values += [row.get("untrained", {}).get(name, "") for name in before]
            writer.writerow([row["trial"], *values, row["tokens"], *(row["params"].get(field, "") for field in fields)])
    else:
        print_front(directory, state, chosen)
        if confirmed:
            print_confirmation(directory.spec, confirmed)


def _objectives(directory: SearchDirectory, chosen: str | None) -> tuple[str, ...]:
    if chosen is None:
        return directory.spec.objectives
    names = tuple(name.strip() for name in chosen.split(","))
    for name in names:
        if name not in OBJECTIVES:
            raise UserError(f"objectives: there is no {name!r}; {nearest(name, OBJECTIVES)}")
    return names


def print_front(directory: SearchDirectory, state: SearchState, objectives: tuple[str, ...]) -> None:
    """The front as a table."""
    from recur_tune.search.record.front import equals, front

    best = front(state.trials.values(), objectives)
    if not best:
        stdout.print("no trial has reached the full budget yet.")
        return
    given = "" if objectives == directory.spec.objectives else f" --objectives {','.join(objectives)}"
    print_trials(best, objectives, f"{command_line('front', directory)}{given} --csv")
    if words := roles(best):
        stdout.print(words)
    if words := no_better_than_untrained(best, objectives):
        note(words)
    for name, others in equals(state.trials.values(), best, objectives).items():
        stdout.print(f"equal to {name}: {others}")


def print_end(directory: SearchDirectory, state: SearchState) -> None:
    """Print the result of a search and the next commands."""
    from recur_tune.search.record.front import front
    from recur_tune.search.record.tracking_place import is_server, tracking_uri, without_password

    spec = directory.spec
    watch = LiveView(directory)
    took = format_duration(state.active_seconds)
    stdout.print(f"{directory.name}: {watch.headline()}, {took}{_preparation(state.preparation_seconds)}", style="bold")
    print_front(directory, state, spec.objectives)
    best, uri = front(state.trials.values(), spec.objectives), tracking_uri(directory)
    lines = [f"picture:  {directory.path / 'front.png'}", f"in a browser:  {directory.path / 'front.html'}"]
    lines.append(f"all of it on one page:  {command_line('report', directory)}")
    lines.append(f"compare runs:  {without_password(uri) if is_server(uri) else command_line('ui', directory)}")
    finished = state.status == "finished"  # else the models of so far are not what to take
    if best and finished:
        lines.append(f"which points are within noise:  {command_line('confirm', directory)}")
    if best and finished and spec.keep != "none":
        lines.append(f"take the best model:  {command_line('export', directory)} --best --to models/{directory.name}")
    if finished:
        more = 2 * max(spec.budget.trials or 0, state.trained)
        lines.append(f"more trials:  {command_line('resume', directory)} --trials {more}")
    for line in lines:
        stderr.print(line, soft_wrap=True)
