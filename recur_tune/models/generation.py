"""Generation of text of any length: when a window is full, its state goes into the next one.

Windows are read as evaluation reads them, so a generated text has the probability that evaluation gives it. Hugging
Face's `model.generate` reads the same way. Here windows may differ from the model's own, a text need not end, and every
token comes with its log-probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from recur_tune.common.windowing import Windowing
from recur_tune.models.decoder import WindowedDecoder
from recur_tune.models.kv_cache import TextCache


@torch.no_grad()
def generate(
    model: WindowedDecoder,
    prompt: list[int],
    windowing: Windowing,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[int, float]]:
    """Tokens after the prompt, without end, each with its log-probability under the model.

    Args:
        model: In evaluation mode.
        prompt: At least one token.
        windowing: The window size and overlap that the model was trained with.
        temperature: 0 takes the most likely token.
        top_k: Sample from so many of the most likely tokens.
        generator: RNG; None: torch's own.
    """
    device, cache = next(model.parameters()).device, TextCache(windowing)
    new = prompt
    while True:
        top_TK = model.read_text(torch.tensor([new], device=device), cache)[0]
        log_p_V = model.logits(top_TK[-1]).float().log_softmax(-1)
        token = _choose(log_p_V, temperature, top_k, generator)
        yield token, float(log_p_V[token])
        new = [token]


@torch.no_grad()
def continue_texts(
    model: WindowedDecoder,
    prompts: Sequence[Sequence[int]],
    windowing: Windowing,
    draws_BT: torch.Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    proceed: Callable[[], None] = lambda: None,
) -> list[list[int]]:
    """Tokens after each of several prompts, sampled side by side.

    Inverse transform sampling: a token is where its draw falls in the cumulative distribution. So a text depends on its
    own prompt and draws, not on its neighbours. Prompts may differ in length: longer ones are still read while shorter
    ones are continued.

    Args:
        model: In evaluation mode.
        prompts: At least one token each.
        windowing: The window size and overlap that the model was trained with.
        draws_BT: Numbers from 0 to 1 in double precision, one for each token of each text.
        temperature: 0 takes the most likely token.
        top_k: Sample from so many of the most likely tokens.
        proceed: Called after every step; it may raise.
    """
    device, cache, tokens = next(model.parameters()).device, TextCache(windowing), draws_BT.shape[1]
    draws_BT = draws_BT.to(device)
    lengths = [len(prompt) for prompt in prompts]
    shortest, longest, length_B = min(lengths), max(lengths), torch.tensor(lengths, device=device)
    padded_BT = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
    new_BT, written = padded_BT[:, :shortest], []
    for at in range(shortest, longest + tokens):
        top_BK = model.read_text(new_BT, cache)[:, -1]
        draw_B1 = draws_BT.gather(1, (at - length_B).clamp(0, tokens - 1)[:, None])
        token_B = _drawn(model.logits(top_BK).float().log_softmax(-1), temperature, top_k, draw_B1)
        if at < longest:
            token_B = torch.where(at < length_B, padded_BT[:, at], token_B)
        written.append(token_B)
        new_BT = token_B[:, None]
        proceed()
    rows = torch.stack(written, dim=1).tolist()
    starts = [length - shortest for length in lengths]
    return [row[start : start + tokens] for row, start in zip(rows, starts, strict=True)]


def _choose(log_p_V: torch.Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> int:
    if temperature == 0:
        return int(log_p_V.argmax())
    return int(torch.multinomial(_sharpened(log_p_V, temperature, top_k), 1, generator=generator))


def _drawn(log_p_BV: torch.Tensor, temperature: float, top_k: int | None, draw_B1: torch.Tensor) -> torch.Tensor:
    if temperature == 0:
        return log_p_BV.argmax(-1)
    # In double precision: in single, unlikely tokens among fifty thousand would vanish.
    up_to_BV = _sharpened(log_p_BV, temperature, top_k).cumsum(-1, dtype=torch.float64)
    total_B1 = up_to_BV[:, -1:]
    # Strictly below the total, or rounding might lead behind the last possible token.
    wanted_B1 = torch.minimum(draw_B1 * total_B1, total_B1.nextafter(torch.zeros_like(total_B1)))
    return torch.searchsorted(up_to_BV, wanted_B1, right=True)[:, 0]


def _sharpened(log_p_V: torch.Tensor, temperature: float, top_k: int | None) -> torch.Tensor:
    """The probabilities to sample from."""
    scaled = log_p_V / temperature
    if top_k is not None and top_k < scaled.shape[-1]:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[..., -1:], -torch.inf)
    return scaled.softmax(-1)
