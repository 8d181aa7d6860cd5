"""`recur-tune eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recur_tune.cli.display import TokenProgress, note, print_table, stderr, stdout, table_by_name
from recur_tune.cli.options import COUNT, as_json, deprecated_option, print_json, trial_options
from recur_tune.common.errors import UserError
from recur_tune.common.from_scratch import is_from_scratch
from recur_tune.common.loading import named
from recur_tune.common.parsing import parse
from recur_tune.config.trial import RENAMED, TrialConfig
from recur_tune.data.corpora.document import SPLITS
from recur_tune.recurrences import registry as recurrences
from recur_tune.training import unfinished

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from recur_tune.models import Windowed
    from recur_tune.tasks.seam import Scores
    from recur_tune.training.evaluation_settings import EvaluationSettings

_OF_UNTRAINED = {"tokenizer", "seed", *recurrences.FIELDS}
_NOT_OF_UNTRAINED = {*TrialConfig.model_fields, *(change.to for change in RENAMED.values())} - _OF_UNTRAINED


@click.command("eval")
@click.argument("run", metavar="RUN|BASE")
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True, help="Which part of the corpus.")
@click.option("--corpus", help="Another corpus than the run's own; of a base default: stdlib.")
@click.option(
    "--window", type=click.IntRange(min=1), help="Tokens read at a time; default: as trained, of a base as in training."
)
@click.option(
    "--overlap", type=click.IntRange(min=0), help="Tokens read again in the next window; default: as trained, else 0."
)
@click.option(
    "--recurrence",
    type=click.Choice([recurrences.NONE, *recurrences.MECHANISMS]),
    help="Read a base with this one, untrained. [default: the run's own, or none]",
)
@trial_options(leave_out=_NOT_OF_UNTRAINED)
@click.option("--batch", type=click.IntRange(min=1), default=16, show_default=True, help="Documents read side by side.")
@click.option(
    "--sample",
    type=COUNT,
    help="Score about so many tokens instead, as 100k: the documents' openings, or of few documents stretches, as in "
    "validations. Faster on long documents; each begins without a state, so the number is another.",
)
@deprecated_option("lanes", "batch", "0.5.0", type=click.IntRange(min=1))
@click.option(
    "--precision", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto", show_default=True,
    help="'auto' is bfloat16 on a GPU.",
)  # fmt: skip
@click.option(
    "--state",
    type=click.Choice(["own", "none", "other"]),
    default="own",
    show_default=True,
    help="State to read with, to measure its effect: the document's own, none, or another document's.",
)
@click.option(
    "--baselines", "with_baselines", is_flag=True, help="Score the untrained base read plainly, too, at as much memory."
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the errors of forecasts, by column and by step ahead, into this file (png, svg or pdf).",
)
@as_json
def evaluate(
    run: str,
    split: str,
    corpus: str | None,
    window: int | None,
    overlap: int | None,
    recurrence: str | None,
    fields: dict[str, Any],
    batch: int,
    sample: int | None,
    precision: str,
    state: str,
    with_baselines: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Score a model: perplexity per word and per token, bits per byte, accuracy; or F1 and exact match of answers,
    where the corpus has questions; or MSE and MAE of forecasts, by column and by step ahead, where it has series.

    RUN is a folder that `train` or `pretrain` wrote, or any Hugging Face folder of a supported family. Every
    document is read from its beginning to its end with the state carried along, and every token after a document's
    first is scored once. More overlap costs more compute (see `recur-tune cost`); a plain model can be scored at
    any overlap.

    BASE is what `train --base` takes. With --recurrence it is read with an untrained state, as at the beginning of a
    training.

    With --baselines the base is read as it is, too, with no recurrence and no training: in plain windows, with overlap,
    with a sliding key-value cache of as many bytes as the state, and in windows longer by as many bytes.

    \b
      recur-tune eval runs/a --split test
      recur-tune eval runs/plain --overlap 30 --json
      recur-tune eval runs/a --state other
      recur-tune eval runs/a --sample 100k
      recur-tune eval runs/base --corpus tales --recurrence cache --cache-rows 32 --window 24 --baselines
    """
    given = {"corpus": corpus, "window": window, "overlap": overlap, "recurrence": recurrence, **fields}
    config = None
    if recurrence is not None or fields or not Path(run).is_dir():
        config = _untrained(run, {name: value for name, value in given.items() if value is not None})
    with stderr.status("loading torch …"):
        model, tokenizer, reading = _opened(run, config, corpus, window, overlap)
    for remark in (reading.warning, unfinished(Path(run)) if config is None else None):
        if remark:
            note(remark)
    if picture is not None and reading.task.picture is None:
        raise UserError(f"picture: scores of {reading.task.name} are not drawn; leave it out, or use --json.")
    trial = _trial(run, config, reading) if with_baselines else None  # refused before the model is scored
    found = _scored(run, model, tokenizer, reading, split, sample, batch, precision, state)
    for remark in found.remarks:
        note(remark)
    report = {
        "run": run, "recurrence": model.config.recurrence, "corpus": reading.corpus, "split": split, "state": state,
        "window": reading.windowing.size, "overlap": reading.windowing.overlap, **found.report(),
    }  # fmt: skip
    if trial is not None:
        report |= _costs(trial)
        report["baselines"] = _baselines(trial, split, sample, batch, precision)
    read = run if config is None or config.mechanism is None else f"{run} with {config.recurrence}"
    _tell(report, f"{read} on {reading.corpus} {split}", reading, found, picture, as_json)


def _tell(
    report: dict[str, Any], read: str, reading: EvaluationSettings, found: Scores, picture: Path | None, as_json: bool
) -> None:
    """Draw and print what was found."""
    if picture is not None and reading.task.picture is not None:
        named(reading.task.picture)(report, picture)
        note(f"drawn: {picture}")
    if as_json:
        print_json(report)
        return
    _print_scores(read, reading, found)
    if "baselines" in report:
        _print_baselines(report, dict(reading.task.qualities))


def _opened(
    run: str, config: TrialConfig | None, corpus: str | None, window: int | None, overlap: int | None
) -> tuple[Windowed, PreTrainedTokenizerBase | None, EvaluationSettings]:
    """A trained model, or with a trial's configuration an untrained one, and how it is read."""
    from recur_tune.models.pretrained import left_behind, load_model
    from recur_tune.training.evaluation_settings import EvaluationSettings, evaluation_settings
    from recur_tune.training.setup import untrained

    if config is None:
        model, tokenizer = load_model(Path(run))
        return model, tokenizer, evaluation_settings(Path(run), model, corpus, window, overlap)
    model, tokenizer = untrained(config)
    warning = left_behind(run, config.recurrence_spec) if Path(run).is_dir() else None
    reading = EvaluationSettings(config.corpus, config.windowing, config.task, config.task_spec, warning)
    return model, tokenizer, reading


def _scored(
    name: str, model: Windowed, tokenizer: PreTrainedTokenizerBase | None, reading: EvaluationSettings, split: str,
    sample: int | None, batch: int, precision: str, state: str = "own",
) -> Scores:  # fmt: skip
    """What a model makes of a split, or of a sample of it."""
    from recur_tune.ops.device import default_device

    task = reading.task.build(reading.task_spec)
    prepared = task.prepare(reading.corpus, split, tokenizer)
    if sample is not None:
        prepared = task.sample(prepared, sample)
    with TokenProgress(f"scoring {name} on {reading.corpus} {split}", task.size(prepared)) as progress:
        found: Scores = task.evaluate(
            model.to(default_device()), prepared, reading.windowing, batch, precision, progress.update, state
        )
    return found


def _print_scores(read: str, reading: EvaluationSettings, found: Scores) -> None:
    windows = f"window {reading.windowing.size}, overlap {reading.windowing.overlap}"
    print_table(f"{read}, {windows}", reading.task.in_words(found.metrics()) | found.counts())
    for title, lines in found.tables().items():
        table = table_by_name([title, *list(lines[0])[1:]])
        for line in lines:
            table.add_row(*line.values())
        stdout.print(table)


def _trial(run: str, config: TrialConfig | None, reading: EvaluationSettings) -> TrialConfig:
    """The trial whose base the baselines read, with the corpus and the windows that its model was read with."""
    from recur_tune.training.evaluation_settings import trial_of

    trial = config or trial_of(Path(run))
    if trial is not None and trial.task.body is not None:
        raise UserError(f"baselines: they are the base as it is, and {trial.task.name} has none; train body dlinear.")
    if trial is None:
        raise UserError(f"baselines: {run} does not say from which base it was trained; give the base itself.")
    if is_from_scratch(trial.base):
        raise UserError(f"baselines: {run} has random weights at first (base {trial.base}), which none can read.")
    read = {"corpus": reading.corpus, "window": reading.windowing.size, "overlap": reading.windowing.overlap}
    return trial.model_copy(update=read)


def _costs(trial: TrialConfig) -> dict[str, float]:
    """The model's own costs, for the table of baselines."""
    from recur_tune.config.base_shape import trial_settings, trial_shape
    from recur_tune.cost.estimate import quick_costs

    return quick_costs(trial, trial_shape(trial), trial_settings(trial))


def _baselines(trial: TrialConfig, split: str, sample: int | None, batch: int, precision: str) -> list[dict[str, Any]]:
    """What each baseline reaches, with its costs."""
    from recur_tune.analysis.baselines import baselines_of

    found: list[dict[str, Any]] = []
    baselines = baselines_of(trial)
    for place, baseline in enumerate(baselines, 1):
        name = f"baseline {place} of {len(baselines)}, {baseline.name},"
        with stderr.status(f"loading {baseline.config.base} for {name.rstrip(',')} …"):
            opened = _opened(baseline.config.base, baseline.config, None, None, None)
        scores = _scored(name, *opened, split, sample, batch, precision)
        found.append({"name": baseline.name, **scores.metrics(), **baseline.costs})
    return found


def _print_baselines(report: dict[str, Any], titles: dict[str, str]) -> None:
    """The model, and its base read as it is, before training."""
    from recur_tune.cost.descriptors import COSTS

    baselines = report["baselines"]
    if not baselines:
        return
    titles = titles | {name: cost.title for name, cost in COSTS.items()}
    first = next(name for name in baselines[0] if name != "name")  # --json has the other numbers
    names = [first, "flops_per_token", "inference_memory"]
    table = table_by_name(["read", *(titles.get(one, one) for one in names)])
    for one in ({**report, "name": "this model"}, *({**one, "name": f"its base, {one['name']}"} for one in baselines)):
        cells = (COSTS[name].unit.format(one[name]) if name in COSTS else f"{one[name]:.5g}" for name in names)
        table.add_row(one["name"], *cells)
    stdout.print(table)


def _untrained(base: str, fields: dict[str, Any]) -> TrialConfig:
    """The trial that would begin with this base; without --recurrence it has none."""
    if "recurrence" not in fields:
        for name in fields.keys() & recurrences.FIELDS.keys():
            owners = " or ".join(recurrences.names_of(name))
            raise UserError(f"{name}: it is a field of {owners}; say which with --recurrence.")
    return parse(TrialConfig, {"recurrence": recurrences.NONE, **fields, "base": base})
