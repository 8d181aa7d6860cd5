"""`recur-tune search`, `resume` and `stop`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recur_tune.cli.display import at_work, note, stderr
from recur_tune.cli.dry_run import check_shapes_and_limits, note_misfit, show_dry_run
from recur_tune.cli.options import as_json, command_line, print_json, read_settings, results_option
from recur_tune.cli.running import address_option, run_watched, runs_as_job
from recur_tune.cli.submitting import (
    check_here,
    check_place,
    is_submitted,
    print_script,
    run_here,
    slurm_options,
    submit_again,
    submit_new,
)
from recur_tune.common.errors import Paused, UserError
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.shipped import find_space
from recur_tune.common.units import format_duration
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.damage import refuse_damaged_log
from recur_tune.search.record.directory import SPEC, SearchDirectory, default_name, results_folder
from recur_tune.search.record.first_trials import changed_fields
from recur_tune.search.record.progress import ended_trials
from recur_tune.search.record.requests import trials_wait
from recur_tune.search.record.spec import SearchSpec, check_units, with_overrides
from recur_tune.search.record.state import SearchState
from recur_tune.sites.slurm.search_jobs import chosen_profile, stop_in_queue

if TYPE_CHECKING:
    from recur_tune.search.record.warm_start import WarmStart

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])


def _run_options(command: AnyCommand) -> AnyCommand:
    options = [
        click.option("--trials", type=click.IntRange(min=1), help="Trials to train; short for --set budget.trials=N."),
        click.option("--time", help="Time for all, as 30m or 8h; short for --set budget.wall_clock=… "
                                    "With --slurm: the length of an allocation, as 8:00:00 or 8h."),
        click.option(
            "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change any field, as budget.tokens=20M."
        ),
        address_option,
        click.option("--detach", is_flag=True, help="Run in the background, also after this terminal closes; "
                                                    "`recur-tune status` shows its progress."),
        results_option,
        as_json,
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("space", required=False)
@click.option("--name", help="What to call it. [default: the file's name and the time]")
@click.option("--dry-run", is_flag=True, help="Check the space, print it with every default (with --slurm: the job "
                                              "script), start nothing.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask about numbers that look like mistakes.")
@click.option("--from", "earlier", metavar="NAME", multiple=True,
              help="Warm start from an earlier search; may be repeated. Its trials count as data where base, corpus, "
                   "tokens and objectives are the same. Otherwise they say what to expect, as far as this search's own "
                   "trials agree.")  # fmt: skip
@_run_options
@slurm_options
def search(
    space: str | None, name: str | None, dry_run: bool, yes: bool, trials: int | None, time: str | None,
    settings: tuple[str, ...], address: str | None, detach: bool, results: Path | None, as_json: bool,
    slurm: str | None, nodes: int | None, gpus_per_node: int | None, follow: bool, earlier: tuple[str, ...],
) -> None:  # fmt: skip
    """Search a space for its Pareto front of quality against cost.

    SPACE is a YAML file, or the name of one that comes with recur-tune: quickstart (the default; nothing is
    downloaded), wikitext-103, pg19, enwik8-bytes, enwik8-bpe, enwik8-short, enwik8-scratch (from random weights), texts
    (your own text files), recurrences (the same with every recurrence), smollm2, hotpotqa (answers to questions), ett
    (forecasts). Trials run on all of this machine, on the cluster at --address, or with --slurm in an allocation that
    the search waits for in the queue. Ctrl-C once saves the trials and pauses the search (exit code 75), twice ends it
    at once (130); `recur-tune resume` continues it.

    \b
      recur-tune search
      recur-tune search texts --set space.corpus=text:DIR --set space.tokenizer=DIR_OF_BPE
      recur-tune search pg19 --name pg19 --trials 200 --set budget.tokens=20M
      recur-tune search pg19 --name pg19 --address auto
      recur-tune search pg19 --name wider --from pg19 --set space.window=[300,600,1000] --detach
      recur-tune search texts --name letters --from pg19 --from enwik8     # learns from both, wherever they help
      recur-tune search pg19 --name pg19 --slurm generic-gpu --nodes 4 --time 8:00:00
      recur-tune search pg19 --dry-run > mine.yaml     # a file to start from
    """
    check_place(address, slurm, nodes, gpus_per_node, follow)
    _check_detached(detach, slurm, as_json)
    file = find_space("quickstart" if space is None else space)
    length = None if is_submitted(slurm) else time
    fields, remarks = changed_fields(read_yaml(file, "space"), _overrides(trials, length, settings), file.stem)
    for remark in remarks:
        note(remark)
    check_units(fields)
    spec = parse(SearchSpec, fields)
    chosen = default_name(file.stem) if name is None else name
    folder = results_folder(results)
    start = _warm_start(spec, folder, earlier)
    spec, told = start.spec, start.knowledge.as_json() if earlier else ""
    if not dry_run or is_submitted(slurm):
        for remark in start.remarks:
            stderr.print(remark, soft_wrap=True)
    if is_submitted(slurm):
        profile = chosen_profile(slurm, nodes=nodes, gpus_per_node=gpus_per_node, time=time)
        path = SearchDirectory.check_free(folder, chosen)
        if dry_run:
            check_shapes_and_limits(spec)
            print_script(path, profile)
        else:
            _ask(spec, yes)
            submit_new(folder, chosen, spec, profile, follow, told)
        return
    SearchDirectory.check_free(folder, chosen)
    if dry_run:
        show_dry_run(file, start, as_json)
        return
    _ask(spec, yes)
    if slurm is not None:
        check_here(spec, folder)
        run_here(SearchDirectory.create(folder, chosen, spec, told))
        return
    _check_runnable(spec, address)
    note_misfit(spec)
    _run(SearchDirectory.create(folder, chosen, spec, told), address, as_json, detach)


@click.command()
@click.argument("name")
@_run_options
@slurm_options
def resume(
    name: str, trials: int | None, time: str | None, settings: tuple[str, ...],
    address: str | None, detach: bool, results: Path | None, as_json: bool,
    slurm: str | None, nodes: int | None, gpus_per_node: int | None, follow: bool,
) -> None:  # fmt: skip
    """Continue a search that was paused or interrupted, or give a finished one more trials.

    Finished trials stay as they are; unfinished ones resume from their last checkpoint. budget.trials,
    budget.wall_clock, budget.plateau, resources, keep and tracking may be changed; any other change makes it another
    search. --slurm without a value uses the search's own profile.

    \b
      recur-tune resume books
      recur-tune resume books --trials 300
      recur-tune resume books --address auto --set resources.workers=2
      recur-tune resume books --slurm
    """
    check_place(address, slurm, nodes, gpus_per_node, follow)
    _check_detached(detach, slurm, as_json)
    directory = SearchDirectory.open(results_folder(results), name)
    directory.check_idle()
    refuse_damaged_log(directory, directory.state())
    length = None if is_submitted(slurm) else time
    overrides = _overrides(trials, length, settings)
    check_units(with_overrides({}, overrides))
    spec = parse(SearchSpec, with_overrides(read_yaml(directory.path / SPEC), overrides))
    directory.check_change(spec)
    if trials is not None:
        _check_more(directory, trials)
    if _is_done(directory, spec):
        note(f"{name} is finished and no trial waits; --trials N adds some.")
        if as_json:
            _print_result(directory, directory.state())
        return
    if is_submitted(slurm):
        profile = chosen_profile(slurm, directory, nodes=nodes, gpus_per_node=gpus_per_node, time=time)
        submit_again(directory, spec, profile, follow)
        return
    if slurm is not None:
        check_here(spec, directory.path.parent)
        directory.change_spec(spec)
        run_here(directory)
        return
    _check_runnable(spec, address)
    _run(directory, address, as_json, detach, spec)


@click.command()
@click.argument("name")
@results_option
def stop(name: str, results: Path | None) -> None:
    """Save the trials of a running search and pause it, from any machine that sees its directory; or cancel its job in
    SLURM's queue.

    \b
      recur-tune stop books
    """
    directory = SearchDirectory.open(results_folder(results), name)
    try:
        queued = stop_in_queue(directory)
    except UserError as error:  # a running search is asked by a file
        if not directory.is_running:
            raise
        queued = True
        note(f"its jobs stay in SLURM's queue: {error}")
    if not directory.is_running and not queued:
        raise UserError(f"name: {name} is not running, so there is nothing to stop.")
    if directory.is_running:
        directory.request_stop()
        with stderr.status(f"{name} is saving its trials … (Ctrl-C does not stop that)"):
            while directory.is_running:
                sleep(0.5)
    stderr.print(
        f"paused; continue with:  {command_line('resume', directory)}{' --slurm' if queued else ''}", soft_wrap=True
    )


def _is_done(directory: SearchDirectory, spec: SearchSpec) -> bool:
    """Whether a resume would do nothing."""
    return spec == directory.spec and directory.state().status == "finished" and not trials_wait(directory)


def _check_more(directory: SearchDirectory, trials: int) -> None:
    """Refuse to give a finished search no more trials than it has had."""
    state = directory.state()
    if state.status == "finished" and trials <= (ended := ended_trials(state)):
        raise UserError(f"trials: {trials} are no more than the {ended} that have ended; {directory.name} is finished.")


def _check_detached(detach: bool, slurm: str | None, as_json: bool) -> None:
    if detach and (slurm is not None or as_json):
        other = "--json" if as_json else "--slurm"
        raise UserError(f"detach: {other} is given too; choose one of them.")


def _run(
    directory: SearchDirectory, address: str | None, as_json: bool, detach: bool, change: SearchSpec | None = None
) -> None:
    from recur_tune.cli.results import print_end, print_front

    if detach:
        from recur_tune.cli.running import run_detached

        if change is not None:
            directory.change_spec(change)
        run_detached(directory, address)
        return

    def tell(state: SearchState) -> None:
        if as_json:
            _print_result(directory, state)
        else:
            print_front(directory, state, directory.spec.objectives)

    try:
        state = run_watched(directory, address, change=change, tell=tell)
    except KeyboardInterrupt:
        stderr.print(f"ended at once; continue with:  {command_line('resume', directory)}", soft_wrap=True)
        raise
    if as_json:
        _print_result(directory, state)
    elif not runs_as_job(address):  # a job has printed it
        print_end(directory, state)
    if state.status != "paused":  # finished; or a job still runs, and only the watching was ended
        return
    limit = directory.spec.budget.wall_clock
    if limit is not None and state.active_seconds >= limit:
        longer = f"--time {format_duration(2 * limit)}"
        stderr.print(f"its time is up; continue with:  {command_line('resume', directory)} {longer}", soft_wrap=True)
        return
    raise Paused(f"paused, and every trial saved; continue with:  {command_line('resume', directory)}")


def _print_result(directory: SearchDirectory, state: SearchState) -> None:
    from recur_tune.search.record.front import front_rows

    front = front_rows(state, directory.spec.objectives)
    print_json({"search": directory.name, "folder": str(directory.path), "status": state.status, "front": front})


def _warm_start(spec: SearchSpec, results: Path, earlier: tuple[str, ...]) -> WarmStart:
    from recur_tune.search.record.warm_start import earlier_searches, warm_start_from

    return warm_start_from(earlier_searches(results, earlier), spec)


def _overrides(trials: int | None, wall_clock: str | None, settings: tuple[str, ...]) -> list[tuple[str, Any]]:
    overrides = read_settings(settings)
    for name, _ in overrides:
        if name in TrialConfig.model_fields and name not in SearchSpec.model_fields:
            raise UserError(f"{name}: a search has no such field, but its trials have: write --set space.{name}=VALUE.")
    if trials is not None:
        overrides.append(("budget.trials", trials))
    if wall_clock is not None:
        overrides.append(("budget.wall_clock", wall_clock))
    return overrides


def _check_runnable(spec: SearchSpec, address: str | None) -> None:
    with at_work("checking the space …"):
        from recur_tune.search.run.driver import check_runnable

        check_runnable(spec, address)


def _ask(spec: SearchSpec, yes: bool) -> None:
    """Ask about numbers that look like mistakes, unless the answer is given; without a terminal they are refused."""
    from recur_tune.search.run.expected_use import questions
    from recur_tune.search.run.preparation import corpus_extents

    for question in () if yes else questions(spec, corpus_extents(spec)):
        if not sys.stdin.isatty():
            raise UserError(f"{question} --yes searches with it; --dry-run tells time and passes.")
        if not click.confirm(f"{question} Is that meant?", err=True):
            raise click.Abort
