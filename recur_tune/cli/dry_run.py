"""The dry run of a search: its space with every default, what it begins with, and what it will take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from recur_tune.cli.display import at_work, note
from recur_tune.cli.options import print_json
from recur_tune.common.errors import UserError
from recur_tune.common.known_shapes import PRETRAINING
from recur_tune.common.units import format_count
from recur_tune.config.base_shape import is_preset
from recur_tune.search.record.directory import dump_spec
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.spec import SearchSpec

if TYPE_CHECKING:
    from recur_tune.data.corpora.document import Extent, Split
    from recur_tune.search.record.warm_start import WarmStart

_ROLES = {"baseline": "the plain baseline", "paper": "the paper"}


def show_dry_run(file: Path, start: WarmStart, as_json: bool) -> None:
    """Print a space with every default, with what is known of the search before it starts, and of earlier searches."""
    spec = start.spec
    check_shapes_and_limits(spec)
    from recur_tune.search.propose.optuna_study import first_points
    from recur_tune.search.record.steps import in_steps
    from recur_tune.search.run.expected_use import expected_use, questions
    from recur_tune.search.run.preparation import Prices, corpus_extents, worst_costs

    first, corpus = first_points(spec, start.knowledge), corpus_extents(spec)
    with at_work("computing the costs of the largest trial, and timing a step …"):
        worst = worst_costs(spec, Prices(spec.resources), lambda config: config, simulated=1)
        expected = list(expected_use(spec, corpus))
    if as_json:
        seen = {"corpus": {split: asdict(extent) for split, extent in corpus.items()}, "steps": in_steps(spec)}
        plain = {"spec": yaml.safe_load(dump_spec(spec)), "first": first, "learned": start.remarks, "worst": worst}
        print_json({**plain, "expected": expected, **seen})
        return
    click.echo(f"# {file}, with every default")
    for line in (*start.remarks, *_beginning(spec, first, corpus), *_comparisons(spec, worst), *expected):
        click.echo(f"# {line}")
    for question in questions(spec, corpus):
        note(f"{question} The search asks whether that is meant.")
    click.echo(dump_spec(spec), nl=False)
    note("nothing was started.")


def _beginning(spec: SearchSpec, first: dict[str, dict[str, Any]], corpus: dict[Split, Extent]) -> Iterator[str]:
    """Lines about the first trials, their base and the corpus."""
    for role, point in first.items():
        fields = ", ".join(f"{name} {value}" for name, value in point.items())
        yield f"begins with {_ROLES.get(role, role)}: {fields}"
    for base in dict.fromkeys(config.base for config in spec.corners if is_preset(config.base)):
        tokens = format_count(PRETRAINING[base]["tokens"])
        yield f"pretrains its base first, {base} with {tokens} tokens, which is besides the time below"
    if corpus:
        yield f"reads {', '.join(f'{split} from {extent}' for split, extent in corpus.items())}"


def _comparisons(spec: SearchSpec, worst: dict[str, float]) -> Iterator[str]:
    """Lines about rungs, steps, and the reference point of the hypervolume."""
    from recur_tune.search.record.steps import describe_steps

    *between, last = (format_count(tokens) for tokens in spec.budget.rung_tokens)
    if between:
        yield f"trials are compared after {', '.join(between)} tokens, and end at {last}, each after a whole step"
    yield describe_steps(spec)
    for name, value in worst.items():
        about = "" if name in spec.reference or name in spec.limits else "about "
        yield f"the hypervolume counts {OBJECTIVES[name].title} below {about}{OBJECTIVES[name].format(value)}"


def check_shapes_and_limits(spec: SearchSpec) -> None:
    """Refuse shapes and limits that no trial can have, without a cluster."""
    with at_work("checking the space …"):
        from recur_tune.search.run.preparation import check_limits, check_shapes

        check_shapes(spec)
        check_limits(spec)
    note_misfit(spec)


def note_misfit(spec: SearchSpec) -> None:
    """Print remarks on sizes that do not fit together, and on a corpus without a test split."""
    from recur_tune.data.corpora.registry import check_corpus, open_corpus
    from recur_tune.search.record.steps import search_misfit
    from recur_tune.search.record.subject import corpus_of
    from recur_tune.search.run.expected_use import remarks

    if remark := search_misfit(spec):
        note(remark)
    for remark in remarks(spec, check_corpus(corpus_of(spec))):
        note(remark)
    try:
        open_corpus(corpus_of(spec)).look("test")
    except UserError as error:
        note(f"{error} Only `recur-tune confirm` needs it.")
