"""GPT-2 with a recurrence, read window by window.

The weights live in Hugging Face's own modules, so any GPT-2 loads and saves as it is; only the way through
the blocks is written here, because the state enters a block's attention as keys and values alone.

Shape suffixes: B lanes, T positions, M inserted embeddings, K hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2Model, GPT2PreTrainedModel

from recur_tune.model.arithmetic import Arithmetic, Product
from recur_tune.model.attention import KeysValues, attend
from recur_tune.model.recurrence import Memory
from recur_tune.spec import MemorySpec

State = torch.Tensor  # whose shape only the recurrence understands
_BY_AUTOGRAD = Arithmetic()


class RecurrentGPT2Config(GPT2Config):
    """GPT-2's configuration and, under `recurrence`, a MemorySpec as a dict; None is the plain model."""

    model_type = "recurrent_gpt2"
    recurrence: dict[str, Any] | None = None
    # How the model was trained to read, so that evaluation can warn when it is read otherwise.
    window: int | None = None
    overlap: int | None = None


@dataclass
class Cache:
    """The part of a window that was already read, for reading on token by token."""

    keys_values: dict[int, KeysValues] = field(default_factory=dict)
    seen: torch.Tensor | None = None
    length: int = 0


@dataclass(frozen=True)
class Reading:
    """What one window (or the next part of it) became: the last layer's output, and the state that it leaves."""

    top_BTK: torch.Tensor
    state: State | None


class RecurrentGPT2(GPT2PreTrainedModel):
    """A pretrained GPT-2 and the recurrence that connects its windows."""

    config_class = RecurrentGPT2Config
    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}

    def __init__(self, config: RecurrentGPT2Config) -> None:
        super().__init__(config)
        self.transformer = GPT2Model(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.recurrence: Memory | None = None
        if config.recurrence is not None:
            self.recurrence = Memory(MemorySpec(**config.recurrence), config.n_embd, config.n_layer)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # The recurrence has a start of its own; GPT-2's narrow normal would leave the state at almost nothing.
        if self.recurrence is not None and any(module is part for part in self.recurrence.modules()):
            self.recurrence.reset(module)
        else:
            super()._init_weights(module)

    def read(
        self,
        tokens_BT: torch.Tensor,
        state: State | None = None,
        fresh_B: torch.Tensor | None = None,
        cache: Cache | None = None,
        leave_state: bool = True,
        arithmetic: Arithmetic = _BY_AUTOGRAD,
    ) -> Reading:
        """Run one window.

        Args:
            tokens_BT: The window's tokens, or with a `cache` its next ones.
            state: What the window before left; None is the unmodified model.
            fresh_B: Lanes that begin a document and must not see the state; None means that all may see it.
            cache: The window's earlier part, updated in place.
            leave_state: False spares making the state where nobody reads on.
            arithmetic: How the blocks' operations are run.
        """
        body, begin = self.transformer, cache.length if cache else 0
        watcher = self.recurrence if leave_state else None
        mixture = watcher.mixture(position_by_position=cache is not None) if watcher is not None else None
        x_BTK = body.drop(arithmetic.embed(tokens_BT, begin, body.wte, body.wpe))
        added: Product | None = None  # to the residual stream, by the block before
        for layer, block in enumerate(body.h):
            inserted_BMK = None
            if self.recurrence is not None and state is not None:
                inserted_BMK = self.recurrence.embeddings(layer, state)
            watched = mixture if layer else None
            x_BTK, qkv, mean_B1K = arithmetic.norm_project(
                x_BTK, added, block.ln_1, block.attn.c_attn, with_mean=watched is not None and watched.of_means
            )
            if watched is not None:  # the sum is the output of the block before
                watched.observe(x_BTK if mean_B1K is None else mean_B1K)
            past = cache.keys_values.get(layer) if cache else None
            attended_BTK, keys_values = attend(arithmetic, block, qkv, inserted_BMK, fresh_B, past)
            if cache is not None:
                cache.keys_values[layer] = keys_values
            added = arithmetic.dropout(arithmetic.project(attended_BTK, block.attn.c_proj), block.attn.resid_dropout)
            x_BTK, added = arithmetic.norm_mlp(x_BTK, added, block.ln_2, block.mlp)
            added = arithmetic.dropout(added, block.mlp.dropout)
        _, top_BTK = arithmetic.norm(x_BTK, added, body.ln_f)
        next_state, seen_BTK = None, cache.seen if cache else None
        if watcher is not None and mixture is not None:
            # As Hugging Face counts hidden states, the last one is normalised.
            mixture.observe(top_BTK.mean(1, keepdim=True) if mixture.of_means else top_BTK)
            mixed_BTK = mixture.total()
            seen_BTK = mixed_BTK if seen_BTK is None else torch.cat([seen_BTK, mixed_BTK], dim=1)
            next_state = watcher.state(seen_BTK)
        if cache is not None:
            cache.seen, cache.length = seen_BTK, begin + tokens_BT.shape[1]
        return Reading(top_BTK, next_state)

    def logits(self, top_BTK: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary."""
        return self.lm_head(top_BTK)

    def forward(self, input_ids: torch.Tensor, state: State | None = None) -> torch.Tensor:
        """Logits of one window."""
        return self.logits(self.read(input_ids, state, leave_state=False).top_BTK)

    def get_output_embeddings(self) -> nn.Module:
        """For Hugging Face's weight tying."""
        return self.lm_head


AutoConfig.register("recurrent_gpt2", RecurrentGPT2Config)
AutoModelForCausalLM.register(RecurrentGPT2Config, RecurrentGPT2)
