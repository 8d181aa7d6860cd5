"""GPT-2 with a recurrence, read window by window.

The weights live in Hugging Face's own modules, so any GPT-2 loads and saves as it is; only the way through
the blocks is written here, because the state enters a block's attention as keys and values alone.

Shape suffixes: B lanes, T positions, M inserted embeddings, K hidden size, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2Model, GPT2PreTrainedModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from recur_tune.model.recurrence import Memory
from recur_tune.spec import MemorySpec

State = torch.Tensor  # whose shape only the recurrence understands


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

    keys_values: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
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
    ) -> Reading:
        """Run one window.

        Args:
            tokens_BT: The window's tokens, or with a `cache` its next ones.
            state: What the window before left; None is the unmodified model.
            fresh_B: Lanes that begin a document and must not see the state; None means that all may see it.
            cache: The window's earlier part, updated in place.
            leave_state: False spares making the state where nobody reads on.
        """
        body, past = self.transformer, cache.length if cache else 0
        position_T = torch.arange(past, past + tokens_BT.shape[1], device=tokens_BT.device)
        x_BTK = body.drop(body.wte(tokens_BT) + body.wpe(position_T))
        seen_BTK = cache.seen if cache else None
        watcher = self.recurrence if leave_state else None
        mixed_BTK: torch.Tensor | None = None
        for layer, block in enumerate(body.h):
            inserted_BMK = None
            if self.recurrence is not None and state is not None:
                inserted_BMK = self.recurrence.embeddings(layer, state)
            x_BTK = _block(block, x_BTK, inserted_BMK, fresh_B, cache, layer)
            if layer == len(body.h) - 1:  # as Hugging Face counts hidden states: the last one is normalised
                x_BTK = body.ln_f(x_BTK)
            if watcher is not None:
                mixed_BTK = watcher.observe(layer, x_BTK, mixed_BTK)
        next_state = None
        if watcher is not None and mixed_BTK is not None:
            seen_BTK = mixed_BTK if seen_BTK is None else torch.cat([seen_BTK, mixed_BTK], dim=1)
            next_state = watcher.state(seen_BTK)
        if cache is not None:
            cache.seen, cache.length = seen_BTK, past + tokens_BT.shape[1]
        return Reading(x_BTK, next_state)

    def logits(self, top_BTK: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary."""
        return self.lm_head(top_BTK)

    def forward(self, input_ids: torch.Tensor, state: State | None = None) -> torch.Tensor:
        """Logits of one window."""
        return self.logits(self.read(input_ids, state, leave_state=False).top_BTK)

    def get_output_embeddings(self) -> nn.Module:
        """For Hugging Face's weight tying."""
        return self.lm_head


def _block(
    block: GPT2Block,
    x_BTK: torch.Tensor,
    inserted_BMK: torch.Tensor | None,
    fresh_B: torch.Tensor | None,
    cache: Cache | None,
    layer: int,
) -> torch.Tensor:
    x_BTK = x_BTK + _attention(block, x_BTK, inserted_BMK, fresh_B, cache, layer)
    mlp = block.mlp
    hidden = mlp.c_fc(block.ln_2(x_BTK))
    # Hugging Face spells gelu_new as eight separate operations; torch's kernel is the same function.
    hidden = F.gelu(hidden, approximate="tanh") if _is_tanh_gelu(block) else mlp.act(hidden)
    return x_BTK + mlp.dropout(mlp.c_proj(hidden))


def _attention(
    block: GPT2Block,
    x_BTK: torch.Tensor,
    inserted_BMK: torch.Tensor | None,
    fresh_B: torch.Tensor | None,
    cache: Cache | None,
    layer: int,
) -> torch.Tensor:
    attn = block.attn
    q, k, v = (_heads(t, attn.num_heads) for t in attn.c_attn(block.ln_1(x_BTK)).split(attn.split_size, dim=2))
    inserted, past = 0, cache is not None and layer in cache.keys_values
    if past:
        assert cache is not None and q.shape[2] == 1, "a window is read on one token at a time"
        k, v = (torch.cat([old, new], dim=2) for old, new in zip(cache.keys_values[layer], (k, v), strict=True))
    elif inserted_BMK is not None:
        inserted = inserted_BMK.shape[1]
        # A key and a value, never a query: only that part of the projection is needed.
        weight, bias = attn.c_attn.weight[:, attn.split_size :], attn.c_attn.bias[attn.split_size :]
        extra = F.linear(block.ln_1(inserted_BMK), weight.t(), bias)
        extra_k, extra_v = (_heads(t, attn.num_heads) for t in extra.split(attn.split_size, dim=2))
        k, v = torch.cat([extra_k, k], dim=2), torch.cat([extra_v, v], dim=2)
        # Placeholder queries make the call square, so that plain causal attention (and its fast kernels) lets
        # every token see the state; their outputs are dropped below.
        q = F.pad(q, (0, 0, inserted, 0))
    if cache is not None:
        cache.keys_values[layer] = (k, v)
    mask = None
    if inserted and fresh_B is not None:
        length = q.shape[2]
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril() & ~(
            fresh_B[:, None, None, None] & (torch.arange(length, device=q.device) < inserted)
        )
        mask[:, :, :inserted] = True  # placeholder rows are dropped, but a row with no key at all would be NaN
    out = F.scaled_dot_product_attention(
        q, k, v,
        attn_mask=mask,
        dropout_p=attn.attn_dropout.p if attn.training else 0.0,
        is_causal=mask is None and not past,
        scale=attn.scaling if hasattr(attn, "scaling") else None,
    )  # fmt: skip
    out_BTK = out[:, :, inserted:].transpose(1, 2).flatten(2)
    return attn.resid_dropout(attn.c_proj(out_BTK))


def _heads(x_BTK: torch.Tensor, heads: int) -> torch.Tensor:
    return x_BTK.unflatten(-1, (heads, -1)).transpose(1, 2)


def _is_tanh_gelu(block: GPT2Block) -> bool:
    return type(block.mlp.act).__name__ in ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh")


AutoConfig.register("recurrent_gpt2", RecurrentGPT2Config)
AutoModelForCausalLM.register(RecurrentGPT2Config, RecurrentGPT2)
