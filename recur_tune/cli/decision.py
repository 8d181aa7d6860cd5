"""`recur-tune front --under`: the best trial within limits, and what a little more of each cost buys."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from recur_tune.cli.display import note, stderr, stdout
from recur_tune.cli.options import command_line, print_json
from recur_tune.cli.trial_tables import print_trials
from recur_tune.common.units import counted
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.objectives import COSTS, OBJECTIVES, Objective
from recur_tune.search.record.state import SearchState

if TYPE_CHECKING:  # the front's own arithmetic takes a second to import
    from recur_tune.search.record.confirmation import Confirmation
    from recur_tune.search.record.decision import Decision


def print_decision(
    directory: SearchDirectory, state: SearchState, objectives: tuple[str, ...], under: str, as_json: bool
) -> None:
    """The best trial within limits, as a table or as JSON; no trial within them is an error."""
    from recur_tune.search.record.confirmation import confirmation
    from recur_tune.search.record.decision import (
        chooses_by_means,
        decide,
        limits_in_words,
        qualities,
        read_limits,
        refuse_limits,
    )
    from recur_tune.search.record.front import trial_row

    limits = read_limits(under)
    quality = next(OBJECTIVES[name] for name in objectives if name not in COSTS)
    trials, confirmed = list(state.trials.values()), confirmation(state, directory.spec)
    known = qualities(trials, quality.name, confirmed)
    found = decide(trials, known, limits)
    if found is None:
        raise refuse_limits(trials, limits)
    if as_json:
        chosen = {trial.name: known[trial.number] for trial in [found.best, *(step.trial for step in found.upgrades)]}
        print_json({
            "search": directory.name, "under": limits, "best": trial_row(found.best, objectives),
            "steps": [{"more": step.cost, **trial_row(step.trial, objectives)} for step in found.upgrades],
            "chosen_by": chosen, "confirmed": chooses_by_means(confirmed, quality.name),
            "unconfirmed": [trial.name for trial in confirmed.unconfirmed] if confirmed else [],
        })  # fmt: skip
        return
    stdout.print(f"the best within {limits_in_words(limits)}: {found.best.name}", style="bold")
    whole = f"{command_line('trial', directory)} {found.best.name}"
    print_trials([found.best], list(dict.fromkeys([*objectives, *limits])), whole)
    for cost in limits:
        stdout.print(_what_more_buys(OBJECTIVES[cost], found, quality, known), soft_wrap=True)
    _print_grounds(directory, found, quality, known, confirmed)
    words = shlex.quote(under.replace(" ", ""))
    where = f"{command_line('export', directory)} --best --under {words} --to models/{directory.name}"
    stderr.print(f"take it:  {where}", soft_wrap=True)


def _what_more_buys(cost: Objective, found: Decision, quality: Objective, known: dict[int, float]) -> str:
    """A sentence about the upgrade that more of one cost allows."""
    step = next((step for step in found.upgrades if step.cost == cost.name), None)
    if step is None:
        return f"more {cost.title} alone buys nothing that was found."
    better, was = known[step.trial.number], known[found.best.number]
    needs, has = step.trial.costs[cost.name], found.best.costs[cost.name]
    more = f" ({needs / has - 1:+.1%})" if has else ""
    return (
        f"{cost.title} {cost.format(needs)} instead of {cost.format(has)}{more} buys {step.trial.name}: "
        f"{quality.title} {quality.format(better)} instead of {quality.format(was)} ({better / was - 1:+.1%})."
    )


def _print_grounds(
    directory: SearchDirectory, found: Decision, quality: Objective, known: dict[int, float],
    confirmed: Confirmation | None,
) -> None:  # fmt: skip
    """Whether the choice is by means over further seeds, or by the search's own validations."""
    from recur_tune.search.record.decision import chooses_by_means

    if chooses_by_means(confirmed, quality.name):
        stdout.print(
            f"chosen among the confirmed points, by means of the {confirmed.split} split: "
            f"{found.best.name} has {quality.format(known[found.best.number])}.",
            soft_wrap=True,
        )
        if (point := confirmed.of(found.best)) and point.no_better_than:
            seeds = counted(len(point.values), "seed")
            note(f"{point.no_better_than} costs no more and does as well, as far as {seeds} can tell.")
    elif confirmed and not confirmed.is_whole:
        note(
            f"chosen by the search's own validations, since {confirmed.unconfirmed_names} "
            f"{'is' if len(confirmed.unconfirmed) == 1 else 'are'} not confirmed yet; "
            f"`{command_line('confirm', directory)}` goes on."
        )
