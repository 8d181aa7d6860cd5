"""A transformer block's operations, by autograd.

A block is written against these few, so that training can run them in another way (`gathered.py`). What a matrix
product made goes from one of them to another, and only they know what it is.

Shape suffixes: B lanes, T positions, K hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.pytorch_utils import Conv1D

from recur_tune.model.passes import move

Product = Any  # what a matrix product made: here, a tensor


class Arithmetic:
    """The modules as they are."""

    move = staticmethod(move)

    def embed(self, tokens_BT: torch.Tensor, begin: int, wte: nn.Embedding, wpe: nn.Embedding) -> torch.Tensor:
        """The residual stream at its start, of positions from `begin` on."""
        return wte(tokens_BT) + wpe(torch.arange(begin, begin + tokens_BT.shape[1], device=tokens_BT.device))

    def norm(self, x_BTK: torch.Tensor, added: Product | None, norm: nn.LayerNorm) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream with what is added to it, and its layer norm."""
        if added is not None:
            x_BTK = x_BTK + added
        return x_BTK, norm(x_BTK)

    def norm_project(
        self,
        x_BTK: torch.Tensor,
        added: Product | None,
        norm: nn.LayerNorm,
        product: Conv1D,
        begin: int = 0,
        with_mean: bool = False,
    ) -> tuple[torch.Tensor, Product, torch.Tensor | None]:
        """The same, but the norm projected to the columns from `begin` on; and the stream's mean over positions,
        [B, 1, K], if it is wanted."""
        x_BTK, normed_BTK = self.norm(x_BTK, added, norm)
        value = product(normed_BTK) if begin == 0 else _columns(normed_BTK, product, begin)
        return x_BTK, value, x_BTK.mean(1, keepdim=True) if with_mean else None

    def norm_mlp(
        self, x_BTK: torch.Tensor, added: Product | None, norm: nn.LayerNorm, mlp: GPT2MLP
    ) -> tuple[torch.Tensor, Product]:
        """The same, but the norm through two layers of neurons."""
        x_BTK, hidden, _ = self.norm_project(x_BTK, added, norm, mlp.c_fc)
        # Hugging Face spells gelu_new as eight separate operations; torch's kernel is the same function.
        hidden = F.gelu(hidden, approximate="tanh") if is_tanh_gelu(mlp) else mlp.act(hidden)
        return x_BTK, self.project(hidden, mlp.c_proj)

    def project(self, x_BTK: torch.Tensor, product: Conv1D) -> Product:
        """A matrix product."""
        return product(x_BTK)

    def value(self, product: Product) -> torch.Tensor:
        """What a product made, for an operation that is none of these."""
        return product

    def heads(self, product: Product | torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values of what a product made, or a tensor's, each [B, heads, T, head size]."""
        return tuple(part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in product.chunk(3, dim=-1))

    def dropout(self, product: Product, dropout: nn.Dropout) -> Product:
        """Dropout on what a product made."""
        return dropout(product)


def _columns(x_BTK: torch.Tensor, product: Conv1D, begin: int) -> torch.Tensor:
    return F.linear(x_BTK, product.weight[:, begin:].t(), product.bias[begin:])


def is_tanh_gelu(mlp: GPT2MLP) -> bool:
    """Whether the activation is GELU approximated by a tanh, under any of its names."""
    return type(mlp.act).__name__ in ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh")
