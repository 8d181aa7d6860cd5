"""`recur-tune generate`."""

from __future__ import annotations

import os
import sys
from itertools import islice
from pathlib import Path

import click

from recur_tune.cli.display import stderr
from recur_tune.cli.options import COUNT, as_json, print_json, sampling_options
from recur_tune.common.errors import UserError


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--prompt", default="The ", show_default=True, help="Text to continue.")
@click.option(
    "--tokens", type=COUNT, default="200", show_default=True, help="How many to write, as 200 or 5k; no limit."
)
@sampling_options
@as_json
def generate(
    run: Path, prompt: str, tokens: int, temperature: float, top_k: int | None, seed: int, as_json: bool
) -> None:  # fmt: skip
    """Continue a prompt, streaming, at any length.

    When a window is full its state passes to the next, so the text may be far longer than the model's context.

    \b
      recur-tune generate runs/a --prompt "The file" --tokens 2000
    """
    # A byte that is not UTF-8 arrives as a surrogate.
    prompt = prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    with stderr.status("loading torch …"):
        import torch

        from recur_tune.data.tokenizers import decode_stream
        from recur_tune.models.generation import generate as write
        from recur_tune.models.pretrained import load_decoder
        from recur_tune.ops.device import default_device
        from recur_tune.training.evaluation_settings import evaluation_settings

        model, tokenizer = load_decoder(run)
    prompt_tokens = tokenizer.encode(prompt, add_special_tokens=False)
    if not prompt_tokens:
        raise UserError(f"prompt: {prompt!r} has no token to continue; give some text.")
    device = default_device()
    random = torch.Generator(device).manual_seed(seed)
    windowing = evaluation_settings(run, model).windowing
    written = islice(write(model.to(device).eval(), prompt_tokens, windowing, temperature, top_k, random), tokens)
    if as_json:
        ids, log_probabilities = zip(*written, strict=True)
        text = "".join(decode_stream(tokenizer, iter(ids)))
        print_json({"prompt": prompt, "text": text, "tokens": len(ids), "log_probability": sum(log_probabilities)})
        return
    try:
        sys.stdout.write(prompt)
        for text in decode_stream(tokenizer, (token for token, _ in written)):
            sys.stdout.write(text)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:  # `recur-tune generate … | head` is no mistake
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
