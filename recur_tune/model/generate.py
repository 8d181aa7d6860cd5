"""Text without end: when a window is full, its state goes into the next one.

A window is read exactly as evaluation reads it, so the probability of a generated text is the one that
evaluation would give it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from recur_tune.corpus.windows import Windowing
from recur_tune.model.language_model import Cache, RecurrentGPT2, State


@torch.no_grad()
def generate(
    model: RecurrentGPT2,
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
    reader = _Reader(model, windowing)
    for token in prompt[:-1]:
        reader.read(token)
    token = prompt[-1]
    while True:
        log_p_V = reader.read(token).float().log_softmax(-1)
        token = _choose(log_p_V, temperature, top_k, generator)
        yield token, float(log_p_V[token])


class _Reader:
    """Reads one token after another; knows where windows end."""

    def __init__(self, model: RecurrentGPT2, windowing: Windowing) -> None:
        self.model, self.windowing = model, windowing
        self.device = next(model.parameters()).device
        self.state: State | None = None
        self.cache, self.tokens = Cache(), []  # type: tuple[Cache, list[int]]
        self.left_by_this_window: State | None = None

    def read(self, token: int) -> torch.Tensor:
        """The logits that follow `token`."""
        if len(self.tokens) == self.windowing.size:
            self.state = self.left_by_this_window
            repeated = self.tokens[self.windowing.stride :]
            self.cache, self.tokens = Cache(), []
            return self._advance([*repeated, token])
        return self._advance([token])

    def _advance(self, tokens: list[int]) -> torch.Tensor:
        reading = self.model.read(torch.tensor([tokens], device=self.device), self.state, cache=self.cache)
        self.tokens += tokens
        self.left_by_this_window = reading.state
        return self.model.logits(reading.top_BTK[0, -1])


def _choose(log_p_V: torch.Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> int:
    if temperature == 0:
        return int(log_p_V.argmax())
    scaled = log_p_V / temperature
    if top_k is not None and top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], -torch.inf)
    return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))
