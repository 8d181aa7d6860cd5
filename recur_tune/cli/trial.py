"""`recur-tune trial`, `add` and `end`: show, request or end one trial of a search."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from recur_tune.cli.display import print_table, sparkline, stderr, stdout
from recur_tune.cli.options import as_json, command_line, print_json, read_settings, results_option
from recur_tune.cli.trial_tables import find_trial
from recur_tune.common.errors import UserError
from recur_tune.common.units import format_count, format_duration
from recur_tune.search.record.directory import SearchDirectory, results_folder
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, Event, SearchState, TrialRecord

_ERROR = "error.txt"  # traceback of a failed trial, in its folder


@click.command()
@click.argument("name")
@click.argument("trial")
@results_option
@as_json
def trial(name: str, trial: str, results: Path | None, as_json: bool) -> None:
    """Show one trial: settings, numbers, learning curve, history, and the command that trains it alone.

    \b
      recur-tune trial books T7
    """
    directory = SearchDirectory.open(results_folder(results), name)
    state, spec = directory.state(), directory.spec
    record = find_trial(directory, state, trial)
    if as_json:
        print_json(_as_values(directory, spec, record))
        return
    _print_heading(state, spec, record)
    _print_settings(spec, record)
    _print_curve(spec, record)
    stdout.print("what happened", style="bold")
    for line in _history(directory, record):
        stdout.print(f"  {line}", soft_wrap=True)
    if error := _traceback(directory, record):
        stdout.print("traceback", style="bold")
        stdout.print(error, soft_wrap=True)
    stderr.print(f"run it alone:  {_command(directory, spec, record)}", soft_wrap=True)


def _print_heading(state: SearchState, spec: SearchSpec, record: TrialRecord) -> None:
    words = f"{record.name}{f' ({record.role})' if record.role else ''}: {record.state}"
    stdout.print(f"{words}{f', {record.reason}' if record.reason else ''}", style="bold", soft_wrap=True)
    reached = {
        OBJECTIVES[name].title: OBJECTIVES[name].format(value)
        for name in spec.objectives
        if (value := record.value(name)) is not None
    }
    whole = ", since its last step is a whole one" if record.tokens > spec.budget.tokens else ""
    reached["tokens"] = f"{format_count(record.tokens)} of {format_count(spec.budget.tokens)}{whole}"
    if record.started is not None:
        ended = record.ended or state.updated or record.started
        reached["from start to end" if record.ended else "since its start"] = format_duration(ended - record.started)
    if record.tokens_per_second:
        reached["tokens a second"] = format_count(record.tokens_per_second)
    if record.measured_peak_memory:
        reached["peak memory, measured"] = OBJECTIVES["peak_memory"].format(record.measured_peak_memory)
    if record.workers > 1:
        reached["workers"] = str(record.workers)
    if record.worker:
        reached["last worker"] = record.worker
    for split, metrics in record.scores.items():
        for name in spec.objectives:
            if name in metrics:
                reached[f"{OBJECTIVES[name].title}, whole {split} split"] = OBJECTIVES[name].format(metrics[name])
    print_table("", reached)


def _print_settings(spec: SearchSpec, record: TrialRecord) -> None:
    """The chosen fields, then the fixed ones."""
    print_table("decided by the search", {name: _plain(value) for name, value in record.params.items()})
    fixed = {name: value for name, value in spec.parsed_space.fixed.items() if name not in record.params}
    print_table("fixed by the space", {name: _plain(value) for name, value in fixed.items()})


def _print_curve(spec: SearchSpec, record: TrialRecord) -> None:
    qualities = [OBJECTIVES[name] for name in spec.objectives if OBJECTIVES[name].kind == "quality"]
    if not record.validations:
        return
    stdout.print(
        f"validations  {sparkline([one.metrics[qualities[0].name] for one in record.validations])}", style="bold"
    )
    table = Table("tokens", *(one.title for one in qualities), box=None, pad_edge=False)
    if record.untrained:
        before = (record.untrained.get(quality.name) for quality in qualities)
        told = (
            "-" if value is None else quality.format(value) for quality, value in zip(qualities, before, strict=True)
        )
        table.add_row("before training", *told)
    for one in record.validations:
        table.add_row(format_count(one.tokens), *(quality.format(one.metrics[quality.name]) for quality in qualities))
    stdout.print(table)


def _history(directory: SearchDirectory, record: TrialRecord) -> list[str]:
    """A line for each event of a trial in the log, without reports."""
    lines = []
    for event, _ in directory.events():
        if event.get("trial") == record.number and (words := _in_words(event)):
            lines.append(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(event['time']))}  {words}")
    return lines


def _in_words(event: Event) -> str:
    match event["kind"]:
        case "trial":
            return "proposed" if "repeats" not in event else "asked for, to confirm the front"
        case "workers":
            return f"trained by {event['workers']} workers" if event["workers"] > 1 else "trained by one worker"
        case "running":
            return f"started again, after: {event['after']}" if "after" in event else "started"
        case "thaw":
            return "resumed: its expected gain per token exceeds a new trial's"
        case "moved":
            return "saved, to move to another worker"
        case "notice":
            return event["text"]
    if not event.get("state"):
        return ""
    tokens = f" at {format_count(event['tokens'])} tokens" if "tokens" in event else ""
    return f"{event['state']}{tokens}{f': {reason}' if (reason := event.get('reason')) else ''}"


def _traceback(directory: SearchDirectory, record: TrialRecord) -> str:
    file = directory.trial(record.number) / _ERROR
    return file.read_text(errors="replace").rstrip() if file.exists() else ""


def _command(directory: SearchDirectory, spec: SearchSpec, record: TrialRecord) -> str:
    from recur_tune.config.fields import train_command

    config = directory.with_own_base(spec.trial_config(record.params, record.seed))
    return train_command(config, Path("runs") / f"{directory.name}-{record.name}")


def _as_values(directory: SearchDirectory, spec: SearchSpec, record: TrialRecord) -> dict[str, Any]:
    return {
        "search": directory.name, "trial": record.name, "state": record.state, "reason": record.reason,
        "role": record.role, "workers": record.workers,
        "params": record.params, "fixed": dict(spec.parsed_space.fixed), "costs": record.costs,
        "tokens": record.tokens, "untrained": record.untrained or None,
        "validations": [{"tokens": one.tokens, **one.metrics} for one in record.validations],
        "scores": record.scores, "history": _history(directory, record),
        "traceback": _traceback(directory, record), "command": _command(directory, spec, record),
    }  # fmt: skip


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@click.command()
@click.argument("name")
@click.option("--set", "settings", multiple=True, required=True, metavar="FIELD=VALUE", help="A field of the trial.")
@click.option("--may-stop", is_flag=True, help="It may be pruned or paused at a rung, as any other trial.")
@results_option
def add(name: str, settings: tuple[str, ...], may_stop: bool, results: Path | None) -> None:
    """Request a trial of your own; the sampler chooses the fields that you do not set.

    While the search runs, the trial gets the next free worker, also where the budget is spent already, and is trained
    to its end. Otherwise it waits for `recur-tune resume`.

    \b
      recur-tune add books --set window=300 --set recurrence=pooled --set l_ins=2
    """
    from recur_tune.search.record.requests import ask_for_trial

    directory = SearchDirectory.open(results_folder(results), name)
    try:
        point = directory.spec.parsed_space.point(dict(read_settings(settings)), named="set")
    except ValueError as error:
        raise UserError(str(error)) from None
    ask_for_trial(directory, point, may_stop)
    if directory.is_running:
        stderr.print(f"{name} trains it next:  {command_line('status', directory)} --follow", soft_wrap=True)
    else:
        stderr.print(f"it waits for:  {command_line('resume', directory)}", soft_wrap=True)


@click.command()
@click.argument("name")
@click.argument("trial")
@results_option
def end(name: str, trial: str, results: Path | None) -> None:
    """End one trial now; the search continues with others. It counts as pruned.

    \b
      recur-tune end books T9
    """
    from recur_tune.search.record.requests import ask_to_end, end_by_hand

    directory = SearchDirectory.open(results_folder(results), name)
    record = find_trial(directory, directory.state(), trial)
    if record.state in ENDED:
        raise UserError(f"trial: {record.name} has ended already: it is {record.state}.")
    if directory.is_running:
        ask_to_end(directory, record.number)
        with stderr.status(f"{record.name} is being ended … (Ctrl-C leaves it to the search)"):
            while directory.is_running and record.state not in ENDED:
                time.sleep(0.5)
                record = directory.state().record(record.number)
    else:
        with directory.hold_lease():
            end_by_hand(directory.open_log(), record.number)
        record = directory.state().record(record.number)
    stderr.print(f"{record.name} is {record.state}.")
