"""`recur-tune budget`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from recur_tune.cli.display import note, stderr, stdout, table_by_name
from recur_tune.cli.options import SIZE, as_json, finite_or, print_json
from recur_tune.common.errors import UserError
from recur_tune.common.units import format_count, format_size

if TYPE_CHECKING:
    from recur_tune.analysis.budget.measurement import Measurement, Verdict

BROKEN = 1  # exit code where a limit is broken


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--against", required=True, type=click.Path(path_type=Path), help="The plain run to compare with.")
@click.option("--more-memory", type=SIZE, default="2GB", show_default=True, help="Peak memory that the state may cost.")
@click.option(
    "--more-time",
    type=click.FloatRange(min=0),
    default=25,
    show_default=True,
    callback=finite_or("choose one such as 25."),
    metavar="PERCENT",
    help="Time per token that the state may cost, in percent.",
)
@click.option("--corpus", help="Another corpus than the runs' own, for the steps and the scores.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Training steps of each to time."
)
@as_json
def budget(
    run: Path, against: Path, more_memory: int, more_time: float, corpus: str | None, steps: int, as_json: bool
) -> int:
    """Measure what a recurrent state costs in memory and time, and what it improves.

    RUN and --against are folders that `train` or `export` wrote, usually a recurrent run and a plain one. A few
    training steps of each are run now, with their own settings and weights; nothing in the folders changes. Peak memory
    is that of a step. Time per token is the median over steps that alternate between the two, so that a device which
    slows down slows both. Accuracy, perplexity and bits per byte are of the validation split.

    The exit code is 1 where a limit is broken, for scripts. The default limits are 2 GB more memory and
    25 % more time: 30 hours instead of a day.

    \b
      recur-tune budget runs/recurrent --against runs/plain
      recur-tune budget runs/recurrent --against runs/plain --more-memory 500MB --more-time 10 --json
    """
    with stderr.status("loading torch …"):
        from recur_tune.analysis.budget.measurement import measure, verdicts
        from recur_tune.analysis.budget.training_probe import trial_to_measure
        from recur_tune.data.corpora.registry import check_corpus

    trials = [trial_to_measure(each) for each in (run, against)]
    if run.resolve() == against.resolve():
        raise UserError(f"against: {against} is the run itself; give another one.")
    corpora = (corpus or trials[0].corpus, corpus or trials[1].corpus)
    for name in corpora:
        check_corpus(name)
    with _Phases() as phases:
        found = measure(
            (run, against), corpora, steps,
            score=lambda each, tokens: phases.show(f"scoring {each}", f"{format_count(tokens)} tokens"),
            progress=lambda rounds: phases.show("timing steps of both in turns", f"{rounds} of {steps}"),
        )  # fmt: skip
    judged = verdicts(found.one.cost, found.other.cost, more_memory, more_time / 100)
    for remark in found.remarks:
        note(remark)
    if as_json:
        limits = [{**vars(one), "kept": one.kept} for one in judged]
        both = {"run": found.one.to_dict(), "against": found.other.to_dict()}
        print_json({"device": found.device, "corpora": corpora, "steps": steps, **both, "limits": limits})
    else:
        _print(found, judged)
    return 0 if all(one.kept for one in judged) else BROKEN


class _Phases:
    """Progress: live on a terminal, elsewhere a line for each phase."""

    def __init__(self) -> None:
        self._status, self._last = stderr.status("measuring …"), ""

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._status.stop()

    def show(self, phase: str, how_far: str) -> None:
        """A phase, and how far it is."""
        if phase != self._last and not stderr.is_terminal:
            stderr.print(f"{phase} …", soft_wrap=True)
        self._last = phase
        self._status.update(f"{phase}: {how_far} …")


def _print(found: Measurement, judged: list[Verdict]) -> None:
    one, other = found.one, found.other
    recorded = [format_size(each.recorded_memory) if each.recorded_memory else "not known" for each in (one, other)]
    stdout.print(f"{found.device}, training steps of both in turns", style="bold")
    table = table_by_name(["", str(one.run), str(other.run)])
    rows = [
        ("recurrence", one.recurrence, other.recurrence),
        ("peak memory of a step", *(format_size(each.cost.peak_memory) for each in (one, other))),
        ("the same when it was trained", *recorded),
        ("time per token", *(f"{each.cost.seconds_per_token * 1e6:.4g} µs" for each in (one, other))),
        *(
            (f"validation {name.replace('_', ' ')}", f"{one.quality[name]:.5g}", f"{other.quality[name]:.5g}")
            for name in one.quality
        ),
    ]
    for row in rows:
        table.add_row(*row)
    stdout.print(table)
    for each in judged:
        stdout.print(_sentence(each), soft_wrap=True)


def _sentence(verdict: Verdict) -> str:
    kept = "kept" if verdict.kept else "broken"
    if verdict.limit == "memory":
        sign = "-" if verdict.more < 0 else "+"
        return f"memory: {sign}{format_size(abs(verdict.more))}, allowed {format_size(verdict.allowed)}: {kept}"
    return f"time per token: {100 * verdict.more:+.1f} %, allowed {100 * verdict.allowed:g} %: {kept}"
