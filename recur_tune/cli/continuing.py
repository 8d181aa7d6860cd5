"""`recur-tune continue`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recur_tune.cli.display import TokenProgress, note, stderr, stdout, table_by_name
from recur_tune.cli.options import COUNT, as_json, print_json, sampling_options
from recur_tune.common.errors import UserError
from recur_tune.common.units import format_count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from recur_tune.analysis.topics.continuations import Sampling
    from recur_tune.analysis.topics.prompts import Prompts
    from recur_tune.analysis.topics.topic_model import TopicModel
    from recur_tune.data.corpora.document import Split


@click.command("continue")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--corpus", help="Where prompts and topics come from; default: the corpus of the runs.")
@click.option(
    "--split",
    type=click.Choice(["validation", "test"]),
    default="test",
    show_default=True,
    help="Which part has the prompts.",
)
@click.option("--prompts", type=COUNT, default="100", show_default=True, help="How many, as 100 or 8k.")
@click.option(
    "--prompt-tokens", type=COUNT, default="300", show_default=True, help="Length of each, in the first run's tokens."
)
@click.option("--tokens", type=COUNT, default="500", show_default=True, help="How many to write after each.")
@click.option("--topics", type=click.IntRange(min=2), default=50, show_default=True, help="Topics of the LDA.")
@sampling_options
@click.option("--batch", type=click.IntRange(min=1), default=64, show_default=True, help="Prompts read side by side.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for tables, a picture and the texts to read.")
@as_json
def continue_command(
    runs: tuple[Path, ...],
    corpus: str | None,
    split: Split,
    prompts: int,
    prompt_tokens: int,
    tokens: int,
    topics: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    batch: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure whether continuations stay on topic, for one trained model or several.

    RUN is a folder that `train`, `pretrain` or `export` wrote, or any Hugging Face folder of a supported family.
    Prompts are taken from held-out documents, and every run continues every one of them, with the state carried from
    window to window. An LDA, fitted on the training split, gives the topics of prompts and continuations. A
    continuation's score is the Jensen-Shannon divergence between the two, in bits (logarithm to base 2): 0 has the
    same topics, 1 has none in common. The true continuation is the floor, another document's the ceiling, and runs are
    compared on the same prompts. A standard error counts documents, not prompts, as independent where there are
    several.

    Texts and LDA are cached, so after Ctrl-C the same command continues.

    \b
      recur-tune continue runs/recurrent runs/plain --corpus text:books --out topics
      recur-tune continue runs/recurrent runs/plain --prompts 8k --tokens 30 --topics 20 --temperature 0
    The second is the paper's setting (section 5.3.1): 300 tokens of context, the 30 likeliest ones, 20 topics.
    """
    with stderr.status("loading torch …"):
        from recur_tune.analysis.topics.continuations import Sampling
        from recur_tune.analysis.topics.folder import check_out
        from recur_tune.data.corpora.registry import check_corpus

    _check_runs(runs)
    if out is not None:
        check_out(out)
    corpus = corpus or _corpus_of(runs)
    check_corpus(corpus, ("train", split))
    sampling = Sampling(tokens, temperature, top_k, seed)
    told = _compared(runs, corpus, split, prompts, prompt_tokens, topics, sampling, batch, out)
    if as_json:
        print_json(told)
    else:
        _print(told)
    if out is not None:
        stderr.print(f"texts to read, tables and a picture:  {out}", soft_wrap=True)


def _compared(
    runs: tuple[Path, ...], corpus: str, split: Split, prompts: int, prompt_tokens: int, topics: int,
    sampling: Sampling, batch: int, out: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Prompts, topics and continuations, and what their comparison says; with all of it in a folder."""
    from recur_tune.analysis.topics.comparison import compare
    from recur_tune.analysis.topics.folder import summary, write_folder
    from recur_tune.data.tokenizers import load_tokenizer

    tokenizers = [load_tokenizer(str(run), field="run") for run in runs]
    taken = _take(corpus, split, tokenizers[0], prompts, prompt_tokens, sampling.tokens, sampling.seed)
    model = _topic_model(corpus, topics)
    _note_remarks(taken, prompts, prompt_tokens + sampling.tokens, tokenizers)
    written = {
        str(run): _written(run, tokenizer, tokenizers[0], taken, sampling, batch)
        for run, tokenizer in zip(runs, tokenizers, strict=True)
    }
    found = compare(taken, written, model)
    settings = {
        "runs": list(map(str, runs)), "corpus": corpus, "split": split, "prompt_tokens": prompt_tokens,
        "topics": topics, **vars(sampling),
    }  # fmt: skip
    told = summary(settings, taken, found, model)
    if out is not None:
        write_folder(out, told, taken, written, found, model)
    return told


def _check_runs(runs: tuple[Path, ...]) -> None:
    from recur_tune.models.pretrained import check_model

    for at, run in enumerate(runs):
        check_model(run)
        if run.resolve() in [other.resolve() for other in runs[:at]]:
            raise UserError(f"run: {run} is given twice; give each run once.")


def _corpus_of(runs: tuple[Path, ...]) -> str:
    from recur_tune.training.evaluation_settings import corpus_of

    found = {run: corpus_of(run) for run in runs}
    if len(set(found.values())) > 1:
        named = ", ".join(f"{run} on {corpus}" for run, corpus in found.items())
        raise UserError(f"corpus: the runs were trained on several ({named}); say by --corpus which to continue.")
    return found[runs[0]]


def _take(
    corpus: str, split: Split, tokenizer: PreTrainedTokenizerBase, prompts: int, length: int, tokens: int, seed: int
) -> Prompts:  # fmt: skip
    from recur_tune.analysis.topics.prompts import take_prompts
    from recur_tune.data.tokens import prepare

    with stderr.status(f"preparing {corpus} {split} …"):
        prepared = prepare(corpus, split, tokenizer)
    what = f"the {split} split of {corpus}"
    return take_prompts(prepared, tokenizer, prompts, length, tokens, seed, what)


def _note_remarks(taken: Prompts, wanted: int, need: int, tokenizers: list[PreTrainedTokenizerBase]) -> None:
    """Print remarks: documents that are too short, prompts without room, different tokenizers."""
    from recur_tune.data.tokenizers import fingerprint

    if taken.too_short:
        note(f"documents skipped, with fewer than {need} tokens: {taken.too_short}.")
    if len(taken.chosen) < wanted:
        note(f"there is room for {len(taken.chosen)} of {wanted} prompts that share no text.")
    if len(set(map(fingerprint, tokenizers))) > 1:
        note(
            "the runs have several tokenizers: all continue the same texts, but as many tokens are not as many words, "
            "and topics are over words."
        )


def _topic_model(corpus: str, topics: int) -> TopicModel:
    from recur_tune.analysis.topics.topic_model import topic_model

    with stderr.status("looking for topics …") as status:

        def tell(seen: int, total: int) -> None:
            if seen == 0 and not stderr.is_terminal:
                stderr.print(f"finding {topics} topics in the training split …")
            status.update(f"finding {topics} topics: {format_count(seen)} of {format_count(total)} pieces of text …")

        return topic_model(corpus, topics, tell)


def _written(
    run: Path, tokenizer: PreTrainedTokenizerBase, first: PreTrainedTokenizerBase, prompts: Prompts,
    sampling: Sampling, batch: int,
) -> list[str]:  # fmt: skip

    from recur_tune.analysis.topics.continuations import Writer, continuations
    from recur_tune.data.tokenizers import fingerprint
    from recur_tune.models.pretrained import load_decoder
    from recur_tune.ops.device import default_device
    from recur_tune.ops.out_of_memory import out_of_memory_as_user_error
    from recur_tune.training.evaluation_settings import evaluation_settings

    model, _ = load_decoder(run)
    windowing = evaluation_settings(run, model).windowing
    length = len(prompts.chosen[0].tokens) + sampling.tokens
    if length <= windowing.size:
        note(f"{run} reads windows of {windowing.size}, and {length} tokens are one of them: it passes no state on.")
    same = fingerprint(tokenizer) == fingerprint(first)
    encoded = [prompt.tokens for prompt in prompts.chosen] if same else None
    writer = Writer(run, model.to(default_device()), tokenizer, windowing)
    texts = [prompt.text for prompt in prompts.chosen]
    too_many = (
        f"batch: {batch} prompts side by side do not fit into the device's memory; choose fewer. "
        "What was written is kept."
    )
    try:
        with (
            out_of_memory_as_user_error(too_many),
            TokenProgress(f"{run} writes", len(texts) * sampling.tokens) as progress,
        ):
            return continuations(writer, texts, sampling, batch, encoded, progress.update)
    except KeyboardInterrupt:
        stderr.print("finished texts are kept; the same command continues.")
        raise


def _print(told: dict[str, Any]) -> None:
    stdout.print(
        f"{told['corpus']} {told['split']}: {told['prompts']} prompts of {told['prompt_tokens']} tokens from "
        f"{told['documents']} documents, {told['tokens']} tokens after each, {told['topics']} topics",
        style="bold", soft_wrap=True,
    )  # fmt: skip
    table = table_by_name(["continuation", "divergence, bits", "known words"])
    for row in told["sources"]:
        level = f"{row['divergence']:.4f} ± {row['standard_error']:.4f}"
        table.add_row(row["name"], level, f"{row['known_words']:.0f}")
    stdout.print(table)
    for one in told["differences"]:
        stdout.print(
            f"{one['one']} less {one['other']}: {one['mean']:+.4f} ± {one['standard_error']:.4f} bits on the same "
            f"prompts, nearer on {100 * one['nearer']:.0f} % of them (p = {one['p_value']:.2g})",
            soft_wrap=True,
        )  # fmt: skip
