"""`recur-tune eval`."""

from __future__ import annotations

from pathlib import Path

import click

from recur_tune.cli.display import TokenProgress, note, print_table, stderr
from recur_tune.cli.options import as_json, deprecated_option, print_json
from recur_tune.data.corpora.document import SPLITS


@click.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True, help="Which part of the corpus.")
@click.option("--corpus", help="Another corpus than the run's own.")
@click.option("--window", type=click.IntRange(min=1), help="Tokens read at a time; default: as trained.")
@click.option(
    "--overlap", type=click.IntRange(min=0), help="Tokens read again in the next window; default: as trained."
)
@click.option("--batch", type=click.IntRange(min=1), default=16, show_default=True, help="Documents read side by side.")
@deprecated_option("lanes", "batch", "0.5.0", type=click.IntRange(min=1))
@click.option("--precision", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto", show_default=True)
@click.option(
    "--state",
    type=click.Choice(["own", "none", "other"]),
    default="own",
    show_default=True,
    help="State to read with, to measure its effect: the document's own, none, or another document's.",
)
@as_json
def evaluate(
    run: Path,
    split: str,
    corpus: str | None,
    window: int | None,
    overlap: int | None,
    batch: int,
    precision: str,
    state: str,
    as_json: bool,
) -> None:
    """Score a trained model: perplexity per word and per token, bits per byte, accuracy; or F1 and exact match of
    answers, where the corpus has questions.

    RUN is a folder that `train` or `pretrain` wrote, or any Hugging Face folder of a supported family. Every
    document is read from its beginning to its end with the state carried along, and every token after a document's
    first is scored once. More overlap costs more compute (see `recur-tune cost`); a plain model can be scored at any.

    \b
      recur-tune eval runs/a --split test
      recur-tune eval runs/plain --overlap 30 --json
      recur-tune eval runs/a --state other
    """
    with stderr.status("loading torch …"):
        from recur_tune.models.pretrained import load_model
        from recur_tune.ops.device import default_device
        from recur_tune.training.evaluation_settings import evaluation_settings

        model, tokenizer = load_model(run)
    reading = evaluation_settings(run, model, corpus, window, overlap)
    if reading.warning:
        note(reading.warning)
    task = reading.task.build(reading.task_spec)
    prepared = task.prepare(reading.corpus, split, tokenizer)
    with TokenProgress(f"scoring {run} on {reading.corpus} {split}", task.size(prepared)) as progress:
        evaluation = task.evaluate(
            model.to(default_device()), prepared, reading.windowing, batch, precision, progress.update, state
        )
    for remark in evaluation.remarks:
        note(remark)
    report = {
        "run": str(run), "corpus": reading.corpus, "split": split, "state": state,
        "window": reading.windowing.size, "overlap": reading.windowing.overlap, **evaluation.report(),
    }  # fmt: skip
    if as_json:
        print_json(report)
        return
    rows = {name: f"{value:.5g}" for name, value in evaluation.metrics().items()}
    print_table(
        f"{run} on {reading.corpus} {split}, window {reading.windowing.size}, overlap {reading.windowing.overlap}",
        rows | evaluation.counts(),
    )
