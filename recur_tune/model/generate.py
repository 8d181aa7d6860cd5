"""Text without end: when a window is full, its state goes into the next one.

A window is read exactly as evaluation reads it, so the probability of a generated text is the one that
evaluation would give it. Hugging Face's `model.generate` reads the same way; here windows may be others than the
model's own, a text need not end, and every token comes with its probability.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from recur_tune.corpus.windows import Windowing
from recur_tune.model.cache import TextCache
from recur_tune.model.reader import ReadsInWindows


@torch.no_grad()
def generate(
    model: ReadsInWindows,
    prompt: list[int],
    windowing: Windowing,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[int, float]]:
    """Tokens after the prompt, for as long as they are asked for, each with its log-probability under the model.

    Args:
        model: In evaluation mode.
        prompt: At least one token.
        windowing: The window size and overlap that the model was trained with.
        temperature: 0 takes the likeliest token.
        top_k: Sample among so many of the likeliest only.
        generator: Where the randomness comes from.
    """
    device, cache = next(model.parameters()).device, TextCache(windowing)
    new = prompt
    while True:
        top_TK = model.read_text(torch.tensor([new], device=device), cache)[0]
        log_p_V = model.logits(top_TK[-1]).float().log_softmax(-1)
        token = _choose(log_p_V, temperature, top_k, generator)
        yield token, float(log_p_V[token])
        new = [token]


def _choose(log_p_V: torch.Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> int:
    if temperature == 0:
        return int(log_p_V.argmax())
    scaled = log_p_V / temperature
    if top_k is not None and top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], -torch.inf)
    return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))
