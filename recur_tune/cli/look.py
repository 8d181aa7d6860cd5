"""`recur-tune look`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recur_tune.cli.display import TokenProgress, note, stderr, stdout
from recur_tune.cli.options import COUNT, as_json, print_json
from recur_tune.common.errors import UserError
from recur_tune.common.files import whole_folder
from recur_tune.common.parsing import finite
from recur_tune.common.precision import Precision
from recur_tune.common.units import format_count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from recur_tune.analysis.look.comparison import Group
    from recur_tune.analysis.look.recall import Recall
    from recur_tune.common.windowing import Windowing
    from recur_tune.data.corpora.document import Split
    from recur_tune.data.tokens import TokenisedSplit
    from recur_tune.models import WindowedDecoder
    from recur_tune.tasks.seam import GivenState

_FILE = "look.json"
# The defaults; an option that was not given is told from one that has no meaning beside the others.
_TOKENS, _QUESTIONS, _DISTANCES = 400_000, 80, (2_000, 8_000, 20_000)


@dataclass(frozen=True)
class _Reading:
    """A model on its device, how it reads, and what tables call it."""

    name: str
    model: WindowedDecoder
    tokenizer: PreTrainedTokenizerBase
    windowing: Windowing
    given: GivenState = "own"


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--against", type=click.Path(path_type=Path), metavar="RUN", help="The baseline; default: the same run "
                                                                                "without its state.")  # fmt: skip
@click.option("--corpus", help="Whose documents are read; default: the run's own corpus.")
@click.option(
    "--split", type=click.Choice(["validation", "test"]), default="test", show_default=True, help="Which part of it."
)
@click.option("--tokens", type=COUNT, help="How many are read, of all documents. [default: 400k]")
@click.option("--recall", "recalls", is_flag=True, help="Ask for facts from far back instead.")
@click.option(
    "--distance", "distances", type=COUNT, multiple=True, help="Tokens from fact to question, with --recall; may be "
                                                               "repeated. [default: 2k, 8k, 20k]"
)  # fmt: skip
@click.option("--questions", type=click.IntRange(min=1), help="At each distance, with --recall. [default: 80]")
@click.option("--batch", type=click.IntRange(min=1), default=16, show_default=True, help="Documents read side by side.")
@click.option(
    "--precision", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto", show_default=True,
    help="'auto' is bfloat16 on a GPU.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the numbers and a picture.")
@as_json
def look(
    run: Path, against: Path | None, corpus: str | None, split: Split, tokens: int | None, recalls: bool,
    distances: tuple[int, ...], questions: int | None, batch: int, precision: Precision, out: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show where a state helps: the loss with the state less the loss without, over groups of tokens.

    Groups are positions in the window, tokens since the last occurrence of the same word in the document, and kinds of
    words: names (capitalised in mid-sentence), rare words (at most once among 20,000 words) and others, each new or
    seen before. Standard errors are paired, and count documents as independent.

    With --recall a fact, `The name of the ferryman was Rosalind.`, is put into documents and asked for after so many
    tokens. It is found if the likeliest tokens spell the name, and chosen if the name is likelier than seven others.

    \b
      recur-tune look runs/a --out look
      recur-tune look runs/a --corpus text:books --against runs/plain
      recur-tune look runs/a --recall --distance 500 --distance 2k
    """
    _check_options(tokens, recalls, distances, questions, out)
    with stderr.status("loading torch …"):
        from recur_tune.data.tokens import prepare

        readings = _readings(run, against, corpus)
        text = prepare(corpus or _corpus_of(run), split, readings[0].tokenizer)
    told: dict[str, Any] = {
        "run": str(run), "against": readings[1].name, "corpus": corpus or _corpus_of(run), "split": split,
        "window": readings[0].windowing.size, "overlap": readings[0].windowing.overlap,
    }  # fmt: skip
    if recalls:
        found = _recalled(readings, text, distances or _DISTANCES, questions or _QUESTIONS, batch, precision)
        told["recall"] = {name: [asdict(one) for one in those] for name, those in found.items()}
    else:
        opening = (tokens or _TOKENS) // (len(text.document_starts) - 1)
        groups = _groups(readings, text.openings(max(2, opening)), batch, precision)
        told["groups"] = [asdict(one) for one in groups]
    if out is not None:
        _write(out, told, [] if recalls else groups)
    if as_json:
        print_json(told)
    elif recalls:
        _print_recall(found)
    else:
        _print_groups(groups, readings)


def _check_options(
    tokens: int | None, recalls: bool, distances: Sequence[int], questions: int | None, out: Path | None
) -> None:
    if distances and not recalls:
        raise UserError("distance: it is of --recall; add it.")
    if questions is not None and not recalls:
        raise UserError("questions: it is of --recall; add it.")
    if tokens is not None and recalls:
        raise UserError("tokens: --recall reads as many as its questions have; leave one of them out.")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"out: {out} is a file; give a folder.")
    if out is not None and out.is_dir() and any(out.iterdir()) and not (out / _FILE).exists():
        raise UserError(f"out: {out} holds other files; give a folder that is new or empty.")


def _corpus_of(run: Path) -> str:
    from recur_tune.training.evaluation_settings import corpus_of

    return corpus_of(run)


def _readings(run: Path, against: Path | None, corpus: str | None) -> tuple[_Reading, _Reading]:
    """The run, and its baseline."""
    from recur_tune.data.tokenizers import fingerprint

    own = _opened(run, corpus)
    if against is None:
        if own.model.recurrence is None:
            raise UserError(f"run: {run} has no state that could be switched off; give a baseline by --against.")
        return own, _Reading("without the state", own.model, own.tokenizer, own.windowing, "none")
    baseline = _opened(against, corpus)
    if fingerprint(own.tokenizer) != fingerprint(baseline.tokenizer):
        raise UserError(f"against: {against} has other tokens than {run}; give a run with the same tokenizer.")
    return own, baseline


def _opened(run: Path, corpus: str | None) -> _Reading:
    from recur_tune.models import WindowedDecoder
    from recur_tune.models.pretrained import check_model, load_model
    from recur_tune.ops.device import default_device
    from recur_tune.training.evaluation_settings import evaluation_settings

    check_model(run)
    model, tokenizer = load_model(run)
    if not isinstance(model, WindowedDecoder):
        raise UserError(f"run: {run} is an encoder, and only a decoder predicts a text's next tokens.")
    if tokenizer is None:
        raise UserError(f"run: {run} forecasts numbers; `recur-tune eval --state none` tells what its state is worth.")
    windowing = evaluation_settings(run, model, corpus).windowing
    return _Reading(str(run), model.to(default_device()), tokenizer, windowing)


def _groups(readings: Sequence[_Reading], text: TokenisedSplit, batch: int, precision: Precision) -> list[Group]:
    from recur_tune.analysis.look.comparison import compare
    from recur_tune.analysis.look.words import words_of
    from recur_tune.tasks.language_modelling.evaluation import score_tokens

    scores = []
    size = format_count(len(text.tokens))
    stderr.print(f"two readings of {size} tokens each; --tokens says how many", highlight=False)
    for one in readings:
        with TokenProgress(f"reading {one.name}", len(text.tokens)) as progress:
            scores.append(score_tokens(one.model, text, one.windowing, batch, precision, progress.update, one.given))
    return compare(scores[0], scores[1], words_of(text, readings[0].tokenizer))


def _recalled(
    readings: Sequence[_Reading], text: TokenisedSplit, distances: Sequence[int], count: int, batch: int,
    precision: Precision,
) -> dict[str, list[Recall]]:  # fmt: skip
    from recur_tune.analysis.look.recall import make_questions, recall

    asked = {distance: make_questions(text, readings[0].tokenizer, distance, count) for distance in distances}
    found: dict[str, list[Recall]] = {one.name: [] for one in readings}
    for one in readings:
        for distance, questions in asked.items():
            with TokenProgress(f"asking {one.name} after {distance:,} tokens", questions.texts_BT.size) as progress:
                found[one.name].append(
                    recall(one.model, questions, distance, one.windowing, batch, precision, one.given, progress.update)
                )
    return found


def _write(out: Path, told: dict[str, Any], groups: Sequence[Group]) -> None:
    """The numbers, and a picture of groups."""
    from recur_tune.analysis.look.picture import panels
    from recur_tune.report.figures.pictures import write_picture

    with whole_folder(out) as partial:
        (partial / _FILE).write_text(json.dumps(finite(told), indent=2) + "\n")
        if groups:
            title = f"Where a state helps: {told['corpus']}, {told['split']} split"
            write_picture(panels(groups), title, partial / "look.png")
    stderr.print(f"numbers{' and a picture' if groups else ''}:  {out}", soft_wrap=True)


def _print_groups(groups: Sequence[Group], readings: Sequence[_Reading]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("tokens by", overflow="fold")
    for title in ("tokens", readings[0].name, readings[1].name, "difference, nats", "±"):
        table.add_column(title, justify="right")
    for by, those in groupby(groups, key=lambda one: one.by):
        table.add_row(by, style="bold")
        for one in those:
            error = "-" if one.standard_error != one.standard_error else f"{one.standard_error:.3f}"
            table.add_row(
                f"  {one.name}", f"{one.tokens:,}", f"{one.recurrent:.3f}", f"{one.plain:.3f}",
                f"{one.difference:+.3f}", error,
            )  # fmt: skip
    stdout.print(table)
    note("below 0 the state helps; standard errors are paired, and count documents as independent.")


def _print_recall(found: dict[str, list[Recall]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("read by", overflow="fold")
    for title in ("tokens ago", "questions", "found", "chosen of 8"):
        table.add_column(title, justify="right")
    for name, those in found.items():
        for one in those:
            spelt, picked = one.standard_errors
            table.add_row(
                name, f"{one.distance:,}", str(one.asked), f"{one.found:.1%} ± {spelt:.1%}",
                f"{one.chosen:.1%} ± {picked:.1%}",
            )  # fmt: skip
    stdout.print(table)
    note("chance chooses 12.5 %.")
