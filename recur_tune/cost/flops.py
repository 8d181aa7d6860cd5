"""Floating-point operations per token: the paper's number, and the whole truth beside it.

A multiply-add counts as two operations, and only matrix products count, as in the paper and in
`torch.utils.flop_counter`. Letters: T window, K hidden size, I the MLP's inner size, L layers, V vocabulary,
M embeddings inserted per site, S sites.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from recur_tune.spec import TrialConfig

if TYPE_CHECKING:  # importing torch takes seconds, and a report counts without it
    from transformers import GPT2Config

    from recur_tune.training.bptt import Plan


def flops_per_token(config: TrialConfig, base: GPT2Config) -> float:
    """The paper's convention (Tables 1 and 2): one forward pass of the blocks and the recurrence per token that is
    scored, embeddings and vocabulary left out, causal attention counted at its average length."""
    causal = (config.window + 1) / 2
    window = config.window * _blocks_per_position(base, attended=causal)
    if config.memory:
        window += _memory_per_window(config, base) + _inserted_per_window(config, base)
    return window / config.windowing.stride


def training_flops_per_token(config: TrialConfig, base: GPT2Config, plan: Plan) -> float:
    """Everything that a training step multiplies, per scored token: forward, backward, whatever the plan runs again,
    the vocabulary projection, and attention over the whole square that kernels are charged for."""
    from recur_tune.model.loss import padded

    windows, tokens = config.windows, config.window
    body = tokens * _blocks_per_position(base, attended=tokens)
    head = tokens * 2 * base.n_embd * padded(base.vocab_size)
    recomputed = windows - plan.kept_windows
    # A product's backward pass is two products of the same size.
    total = 3 * windows * (body + head) + recomputed * body
    if config.memory:
        made, inserted = _memory_per_window(config, base), _inserted_square(config, base)
        # The last window leaves no state, and the first has none to see.
        total += 3 * (windows - 1) * (made + inserted)
        total += recomputed * made + max(recomputed - 1, 0) * inserted
    return total / config.windowing.span(windows)


def _blocks_per_position(base: GPT2Config, attended: float) -> float:
    k, inner = base.n_embd, base.n_inner or 4 * base.n_embd
    projections = 2 * (3 * k * k + k * k + 2 * k * inner)
    attention = 2 * 2 * k * attended
    return base.n_layer * (projections + attention)


def _memory_per_window(config: TrialConfig, base: GPT2Config) -> float:
    """Making the state: the network, and the pooling where it is a product."""
    assert config.memory is not None
    memory = config.memory
    by_stretch = memory.pooling == "recent"  # the network is run for each embedding, and makes one
    outputs = _sites(config, base) * (1 if by_stretch else memory.embeddings) * base.n_embd
    sizes = [base.n_embd, *[memory.width] * memory.depth, outputs]
    network = sum(2 * fan_in * fan_out for fan_in, fan_out in pairwise(sizes))
    pooling = 2 * 2 * config.window * base.n_embd if memory.pooling == "attention" else 0
    return network * (memory.embeddings if by_stretch else 1) + pooling


def _inserted_per_window(config: TrialConfig, base: GPT2Config) -> float:
    """Using the state: its keys and values, and every position's look at them."""
    assert config.memory is not None
    project = config.memory.embeddings * 2 * 2 * base.n_embd * base.n_embd
    look = config.window * config.memory.embeddings * 2 * 2 * base.n_embd
    return _sites(config, base) * (project + look)


def _inserted_square(config: TrialConfig, base: GPT2Config) -> float:
    """The same where the attention's square grows from T to T + M on both sides."""
    assert config.memory is not None
    project = config.memory.embeddings * 2 * 2 * base.n_embd * base.n_embd
    grown = (config.window + config.memory.embeddings) ** 2 - config.window**2
    return _sites(config, base) * (project + grown * 2 * 2 * base.n_embd)


def _sites(config: TrialConfig, base: GPT2Config) -> int:
    return base.n_layer if config.l_ins == "all" else 1
