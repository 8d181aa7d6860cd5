"""Continuations of prompts by a trained model, cached as they are written.

The cache's key is the model's weights, the prompts and the sampling. So an interrupted command continues, and a command
with a further run writes only that run's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder, reading, write_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from recur_tune.common.windowing import Windowing
    from recur_tune.models import WindowedDecoder

_FORMAT = 1


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled, and how many."""

    tokens: int
    temperature: float
    top_k: int | None
    seed: int


@dataclass(frozen=True)
class Writer:
    """A trained model with what writing needs."""

    run: Path
    model: WindowedDecoder  # on its device
    tokenizer: PreTrainedTokenizerBase
    windowing: Windowing


def continuations(
    writer: Writer,
    texts: Sequence[str],
    sampling: Sampling,
    batch: int,
    encoded: Sequence[Sequence[int]] | None = None,
    progress: Callable[[int], None] = lambda tokens: None,
) -> list[str]:
    """The model's continuation of each text, each with its own random numbers.

    Args:
        writer: The model.
        texts: The prompts.
        sampling: How tokens are chosen.
        batch: Prompts in a batch, which does not change what is written.
        encoded: The prompts in the model's own tokens, where they are known.
        progress: Called with the tokens written so far, cached ones included; it may raise, and finished texts stay.
    """
    import torch

    from recur_tune.models.generation import continue_texts

    prompts = encoded or [_encode(writer, text) for text in texts]
    file = _file(writer, texts, sampling)
    done = _read(file)
    missing = [at for at in range(len(prompts)) if at not in done]
    model = writer.model.eval()
    for begin in range(0, len(missing), batch):
        places = missing[begin : begin + batch]
        steps = 0

        def proceed(made: int = len(done), rows: int = len(places)) -> None:
            nonlocal steps
            steps += 1
            progress(made * sampling.tokens + rows * min(steps, sampling.tokens))

        draws = np.stack([np.random.default_rng([sampling.seed, at]).random(sampling.tokens) for at in places])
        written = continue_texts(
            model, [prompts[at] for at in places], writer.windowing, torch.from_numpy(draws), sampling.temperature,
            sampling.top_k, proceed,
        )  # fmt: skip
        done |= {at: writer.tokenizer.decode(tokens) for at, tokens in zip(places, written, strict=True)}
        write_text(file, "".join(f"{json.dumps([at, done[at]])}\n" for at in sorted(done)))
    return [done[at] for at in range(len(prompts))]


def _encode(writer: Writer, text: str) -> list[int]:
    tokens = writer.tokenizer.encode(text, add_special_tokens=False)
    if not tokens:
        raise UserError(f"run: the tokenizer of {writer.run} makes no token of the prompt {text[:40]!r}.")
    return tokens


def _file(writer: Writer, texts: Sequence[str], sampling: Sampling) -> Path:
    about: list[Any] = [_FORMAT, weights_digest(writer.run), writer.windowing.size, writer.windowing.overlap]
    key = json.dumps([*about, list(texts), vars(sampling)])
    return cache_folder() / "continuations" / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.jsonl"


def _read(file: Path) -> dict[int, str]:
    if not file.exists():
        return {}
    with reading(file):
        return dict(json.loads(line) for line in file.read_text().splitlines())


def weights_digest(run: Path) -> str:
    """Digest of the files that decide what a model writes."""
    digest = hashlib.sha256()
    for path in sorted([*run.glob("*.safetensors"), run / "config.json", run / "tokenizer.json"]):
        if path.exists():
            with reading(path), path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
