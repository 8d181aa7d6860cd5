"""`recur-tune confirm`: the front trained again with other seeds, and scored on unseen documents."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from recur_tune.cli.display import note, stderr, stdout
from recur_tune.cli.options import as_json, command_line, open_search, print_json, results_option
from recur_tune.cli.running import address_option, run_watched
from recur_tune.cli.submitting import check_place, is_submitted, slurm_options, submit_again
from recur_tune.cli.trial_tables import in_two_lines
from recur_tune.common.errors import Paused, UserError
from recur_tune.common.units import counted
from recur_tune.data.corpora.document import SPLITS
from recur_tune.recurrences.registry import MARKS
from recur_tune.search.record.objectives import COSTS, OBJECTIVES
from recur_tune.search.record.requests import RIVAL
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, SearchState, TrialRecord
from recur_tune.sites.slurm.search_jobs import chosen_profile

if TYPE_CHECKING:  # the front's own arithmetic takes a second to import
    from recur_tune.search.record.confirmation import Confirmation


_PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"  # a mean and its error stay on one line


@click.command()
@click.argument("name", required=False)
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Further seeds for each point."
)
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True, help="Split to score them on.")
@address_option
@results_option
@as_json
@slurm_options
def confirm(
    name: str | None, seeds: int, split: str, address: str | None, results: Path | None, as_json: bool,
    slurm: str | None, nodes: int | None, gpus_per_node: int | None, follow: bool,
) -> None:  # fmt: skip
    """Train the front again with other seeds, and tell which of its points are within noise.

    NAME is the latest search by default. Each point of the front is trained to its full budget with further seeds, and
    so is the best plain trial at the cost of each recurrent one; where there is none, the same settings without a
    recurrence are trained first, as its plain rival. They are scored on documents that the search has never
    seen. You get means with standard errors, and which points are within noise of a cheaper one. A point's own number
    is not in its mean, because of selection bias: it was chosen for being good. No seed is trained twice; Ctrl-C pauses
    (exit code 75), and the same command continues. The unfinished trials of a paused search wait until `resume`.

    \b
      recur-tune confirm books --seeds 3
      recur-tune confirm books --seeds 5 --slurm
    """
    from recur_tune.search.record.confirmation import ConfirmationPlan, confirmation, points_to_confirm, untried_rivals

    check_place(address, slurm, nodes, gpus_per_node, follow)
    if slurm is not None and not is_submitted(slurm):
        raise UserError("slurm: 'here' is for a search; give a profile, or none in an allocation that you hold.")
    directory = open_search(results, name)
    directory.check_idle()
    state, spec, order = directory.state(), directory.spec, ConfirmationPlan(seeds, split)
    points = points_to_confirm(state, spec)
    if not points:
        raise UserError(f"name: {directory.name} has no trial at its full budget yet, so there is no front to confirm.")
    missing, rivals = order.missing(state, spec), untried_rivals(state, spec)
    _tell_plan(points, seeds, len(missing), rivals)
    if waiting := [trial.name for trial in state.trials.values() if trial.state not in ENDED and trial.role != RIVAL]:
        note(f"unfinished trials of the search wait for `{command_line('resume', directory)}`: {', '.join(waiting)}.")
    if is_submitted(slurm):
        profile = chosen_profile(slurm, directory, nodes=nodes, gpus_per_node=gpus_per_node)
        submit_again(directory, spec, profile, follow, order.command)
        return
    if missing or rivals or any(one.state not in ("complete", "failed") for one in state.repeats.values()):
        from recur_tune.search.run.driver import check_runnable

        with stderr.status("checking …"):
            check_runnable(spec, address)
        state = run_watched(directory, address, order)
        known = {trial.number for trial in points}
        missing += [(trial, seed) for trial, seed in order.missing(state, spec) if trial.number not in known]
    found = confirmation(state, spec, split)
    if as_json:
        told = {"seeds": seeds, **_in_json(found)} if found else {"points": []}
        print_json({"search": directory.name, **told})
    elif found is None:
        note("no training has reached its end yet.")
    else:
        print_confirmation(spec, found)
    if _is_cut_short(state, missing):
        raise Paused(f"paused; continue with:  {command_line('confirm', directory)} --seeds {seeds}")
    if not as_json:
        stderr.print(f"picture:  {directory.path / 'confirmed.png'}", soft_wrap=True)


def _tell_plan(points: list[TrialRecord], seeds: int, trainings: int, rivals: Iterable[str]) -> None:
    """Say on stderr which points are repeated, and which plain rivals are trained first."""
    stderr.print(
        f"{counted(len(points), 'point')} ({', '.join(trial.name for trial in points)}), "
        f"{counted(seeds, 'seed')} each: {counted(trainings, 'training')} to do."
    )
    if names := list(rivals):
        note(
            f"the search tried no plain trial at the cost of {', '.join(names)}; {counted(len(names), 'plain rival')}"
            " (the same settings, no recurrence) will be trained first, and then with each seed."
        )


def _in_json(found: Confirmation) -> dict[str, Any]:
    return {
        "split": found.split, "spread": found.spread, "unconfirmed": [trial.name for trial in found.unconfirmed],
        "points": found.rows(),
    }  # fmt: skip


def _is_cut_short(state: SearchState, wanted: list[tuple[TrialRecord, int]]) -> bool:
    """Whether a training that was wanted has not ended; one that failed has."""
    begun = {(one.repeats, one.seed) for one in state.repeats.values()}
    rivals = (one for one in state.trials.values() if one.role == RIVAL)
    return any(one.state not in ENDED for one in (*state.repeats.values(), *rivals)) or any(
        (trial.number, seed) not in begun for trial, seed in wanted
    )


def print_confirmation(spec: SearchSpec, found: Confirmation) -> None:
    """Means and standard errors as a table, and the points within noise."""
    quality = OBJECTIVES[found.quality]
    costs = [OBJECTIVES[name] for name in spec.objectives if name in COSTS]
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads = [f"{in_two_lines(quality.title)}\n{found.split}", "seeds", "valid.\nfound", "valid.\nagain"]
    for place, title in enumerate(["trial", "kind", *heads, *(in_two_lines(cost.title) for cost in costs)]):
        table.add_column(title, no_wrap=True, justify="left" if place < 2 else "right", vertical="bottom")
    for point in found.points:
        kind = MARKS[spec.trial_config(point.trial.params).recurrence].word
        error = "" if math.isnan(point.standard_error) else f" ± {point.standard_error:.2g}"
        seen = (point.trial.value(found.quality), point.validation)
        table.add_row(
            point.trial.name, kind, f"{quality.format(point.mean)}{error}", str(len(point.values)),
            *("-" if value is None else quality.format(value) for value in seen),
            *(cost.format(point.trial.costs[cost.name]) for cost in costs),
        )  # fmt: skip
    stdout.print(table)
    for point in found.points:
        if point.trial.role == RIVAL:
            stdout.print(f"{point.trial.name}: a plain rival, which the search had not tried.", soft_wrap=True)
        if point.no_better_than:
            stdout.print(f"{point.trial.name}: {point.verdict}.", soft_wrap=True)
    if math.isnan(found.spread):
        note("one seed each has no standard error, so noise is not known; `--seeds 3` has one.")
    else:
        stdout.print(
            f"± is the standard error of a mean; seeds differ by {found.spread:.2g} (standard deviation, pooled over "
            f"{counted(len(found.points), 'point')}, {counted(found.freedom, 'degree')} of freedom).",
            soft_wrap=True,
        )
    if not found.is_whole:
        note(
            f"not confirmed yet: {found.unconfirmed_names}; until then `front --under` and `export --best` choose by "
            "the search's own validations."
        )
