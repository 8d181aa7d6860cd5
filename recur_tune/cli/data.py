"""`recur-tune data`."""

from __future__ import annotations

import click
from rich.table import Table

from recur_tune.cli.display import TokenProgress, stderr, stdout
from recur_tune.cli.options import as_json, print_json
from recur_tune.common.files import cache_folder
from recur_tune.data.corpora.document import SPLITS


@click.group()
def data() -> None:
    """The corpora: which there are, and getting one ready."""


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
        loaded, described = load_tokenizer(tokenizer), task_of(name)
        task = described.build(described.spec())
    summaries = {}
    for split in SPLITS:
        with TokenProgress(f"{name} {split}", None) as progress:
            summaries[split] = task.prepare(name, split, loaded, progress.update).summary()
    if as_json:
        print_json({"corpus": name, "tokenizer": tokenizer, "cache": str(cache_folder()), "splits": summaries})
        return
    table = Table("split", "documents", "tokens", "words", "bytes", box=None, pad_edge=False)
    for split, summary in summaries.items():
        table.add_row(split, *(f"{number:,}" for number in summary.values()))
    stdout.print(table)
