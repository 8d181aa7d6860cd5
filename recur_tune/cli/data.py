"""`recur-tune data`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from recur_tune.cli.display import TokenProgress, note, stderr, stdout
from recur_tune.cli.options import as_json, print_json, trial_options
from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.data.corpora.document import SPLITS

_OF_TEACHER = {"base", "corpus", "tokenizer", "teacher_window", "teacher_top"}
_PERCENT = click.FloatRange(min=0, max=100, min_open=True, max_open=True)


@click.group()
def data() -> None:
    """The corpora: list them, split your own texts, tokenise one in advance."""


@data.command("list")
@as_json
def list_corpora(as_json: bool) -> None:
    """Name the corpora and what each needs."""
    from recur_tune.data.corpora.registry import CORPORA

    if as_json:
        print_json({name: {"summary": kind.summary, "needs": kind.needs} for name, kind in CORPORA.items()})
        return
    table = Table("corpus", "needs", "what it is", box=None, pad_edge=False)
    for name, kind in CORPORA.items():
        table.add_row(name, kind.needs, kind.summary)
    stdout.print(table)


@data.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="A new folder.")
@click.option("--validation", type=_PERCENT, default=10, show_default=True, help="Percent of the text for validation.")
@click.option("--test", type=_PERCENT, default=10, show_default=True, help="Percent of the text for the test.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Decides which file goes where.")
@as_json
def split(source: Path, target: Path, validation: float, test: float, seed: int, as_json: bool) -> None:
    """Split your texts into train, validation and test, as copies in a new folder.

    SOURCE is a folder of text files in UTF-8, one document each, or a single file. Files of a folder are shuffled and
    stay whole; those in folders within it are taken too. Of files with equal text one is taken, so that no text is both
    trained on and scored. A single file is cut at empty lines: its beginning is trained on, its end is the test. Each
    part is then one document. Documents are scored side by side, so several files are scored faster than one.

    \b
      recur-tune data split books --to texts
      recur-tune data split novel.txt --to texts --validation 5 --test 5
    """
    if not source.exists():
        raise UserError(f"source: there is no file or folder {source}.")
    if target.exists():
        raise UserError(f"to: {target} is there already; give a new folder.")
    with stderr.status("reading …"):
        from recur_tune.data.splitting import split_texts

        parts = split_texts(source, target, validation / 100, test / 100, seed)
    if as_json:
        splits = {name: {"documents": part.files, "bytes": part.bytes} for name, part in parts.items()}
        print_json({"corpus": f"text:{target}", "splits": splits})
        return
    table = Table("split", "documents", "bytes", box=None, pad_edge=False)
    for name, part in parts.items():
        table.add_row(name, f"{part.files:,}", f"{part.bytes:,}")
    stdout.print(table)
    note(f"it is the corpus text:{target} now.")


@data.command()
@click.argument("name")
@click.option("--tokenizer", default="bytes", show_default=True, help="'bytes', a folder, or a name on the Hub.")
@as_json
def prepare(name: str, tokenizer: str, as_json: bool) -> None:
    """Fetch and tokenise a corpus now rather than in the first run; it is done once and kept.

    \b
      recur-tune data prepare stdlib
      recur-tune data prepare pg19 --tokenizer gpt2
      recur-tune data prepare text:books --tokenizer runs/base
    """
    with stderr.status("loading …"):
        from recur_tune.data.corpora.registry import check_corpus
        from recur_tune.data.tokenizers import load_tokenizer
        from recur_tune.tasks.registry import task_of

        check_corpus(name, SPLITS)
        described = task_of(name)
        loaded = load_tokenizer(tokenizer) if described.body is None else None
        task = described.build(described.spec())
    summaries = {}
    for split in SPLITS:
        with TokenProgress(f"{name} {split}", None) as progress:
            summaries[split] = task.prepare(name, split, loaded, progress.update).summary()
    if as_json:
        print_json({"corpus": name, "tokenizer": tokenizer, "cache": str(cache_folder()), "splits": summaries})
        return
    table = Table("split", *summaries["train"], box=None, pad_edge=False)
    for split, summary in summaries.items():
        table.add_row(split, *(f"{number:,}" for number in summary.values()))
    stdout.print(table)


@data.command()
@trial_options(leave_out=set(TrialConfig.model_fields) - _OF_TEACHER)
@click.option("--dry-run", is_flag=True, help="Tell what it takes, and make nothing.")
@as_json
def teach(fields: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Make the predictions of a teacher now rather than in the first run with `--loss distill`; it is done once and
    kept. The teacher is the base itself, reading the training text in long windows.

    \b
      recur-tune data teach --base runs/base --corpus tales --teacher-window 128
      recur-tune data teach --base gpt2 --corpus text:books --teacher-top 16 --dry-run
    """
    config = parse(TrialConfig, {**fields, "recurrence": "none", "window": 1, "loss": "distill"})
    teacher = config.teacher
    if teacher is None:
        raise UserError(f"corpus: {config.corpus} has no next tokens; a teacher needs a corpus of texts.")
    with stderr.status("loading torch …"):
        from recur_tune.training.setup import teach as make
        from recur_tune.training.setup import training_text
        from recur_tune.training.teacher import described, teacher_flops_per_token

        shape, train = training_text(config)
    tokens = len(train.tokens)
    if not as_json:
        note(described(teacher, shape, tokens))
    if not dry_run:
        with TokenProgress(f"the teacher reads {config.corpus} train", tokens) as progress:
            make(config, lambda words, done, total: progress.update(done))
    if as_json:
        flops, size = tokens * teacher_flops_per_token(teacher, shape), tokens * teacher.bytes_per_token(shape)
        print_json({"corpus": config.corpus, "base": config.base, "tokens": tokens, "flops": flops, "bytes": size})
