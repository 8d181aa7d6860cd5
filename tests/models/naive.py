"""A decoder's blocks written out once more, one position and one head at a time, for tests of what recurrences do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from recur_tune.models import WindowedDecoder
from tests.models.bodies import hugging_face

_THETA = 10000.0


@dataclass(frozen=True)
class Layer:
    """A block's modules, whatever its family: transformers' own."""

    qkv: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # each [T, heads, D], not rotated
    out: nn.Module
    mlp: Callable[[torch.Tensor], torch.Tensor]  # with its norm


class Naive:
    """A body's weights, for windows of one text."""

    def __init__(self, model: WindowedDecoder) -> None:
        shape, plain = model.config.shape, hugging_face(model)
        self.heads, self.groups, self.head_size = shape.heads, shape.key_value_heads, shape.head_size
        self.rotary = not shape.learned_positions
        body = plain.base_model
        self.tokens, self.positions = body.get_input_embeddings(), getattr(body, "wpe", None)
        self.final_norm = body.norm if self.rotary else body.ln_f
        self.layers = [self._llama(block) for block in body.layers] if self.rotary else [*map(self._gpt2, body.h)]

    def _gpt2(self, block) -> Layer:
        def qkv(x):
            return tuple(one.unflatten(-1, (self.heads, -1)) for one in block.attn.c_attn(block.ln_1(x)).chunk(3, -1))

        return Layer(qkv, block.attn.c_proj, lambda x: block.mlp(block.ln_2(x)))

    def _llama(self, block) -> Layer:
        own = block.self_attn

        def qkv(x):
            x = block.input_layernorm(x)
            made = [one(x).unflatten(-1, (-1, self.head_size)) for one in (own.q_proj, own.k_proj, own.v_proj)]
            norms = getattr(own, "q_norm", None), getattr(own, "k_norm", None), None
            return tuple(one if norm is None else norm(one) for one, norm in zip(made, norms, strict=True))

        return Layer(qkv, own.o_proj, lambda x: block.mlp(block.post_attention_layernorm(x)))

    def embed(self, tokens_T: torch.Tensor, begin: int = 0) -> torch.Tensor:
        x_TK = self.tokens(tokens_T)
        return x_TK if self.positions is None else x_TK + self.positions.weight[begin : begin + len(tokens_T)]

    def run(self, x_TK: torch.Tensor, begin: int = 0) -> torch.Tensor:
        """Rows from position `begin` on through all layers, each seeing itself and those before it."""
        for layer in self.layers:
            q_THD, k_TGD, v_TGD = layer.qkv(x_TK)
            keys = [[self.apply_rotary(key, begin + t) for key in k_GD] for t, k_GD in enumerate(k_TGD)]
            heads_THD = torch.empty_like(q_THD)
            for t, q_HD in enumerate(q_THD):
                for head, query in enumerate(q_HD):
                    g, seen = self.group(head), range(t + 1)
                    heads_THD[t, head] = look(
                        self.apply_rotary(query, begin + t), [keys[s][g] for s in seen], [v_TGD[s, g] for s in seen]
                    )
            x_TK = x_TK + layer.out(heads_THD.flatten(1))
            x_TK = x_TK + layer.mlp(x_TK)
        return self.final_norm(x_TK)

    def apply_rotary(self, vector: torch.Tensor, position: int) -> torch.Tensor:
        """Rotary: a head's i-th number and that of its second half, a pair, rotated by position / theta ^ (2 i / D)."""
        if not self.rotary:
            return vector
        first, second = vector.chunk(2)
        pair = torch.arange(self.head_size // 2).double()
        angle = position / _THETA ** (2 * pair / self.head_size)
        made = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([made.real, made.imag])

    def group(self, head: int) -> int:
        return head // (self.heads // self.groups)


def with_exact_turns(model: nn.Module) -> nn.Module:
    """The same model; transformers' cosines and sines are single precision's, whatever it is given."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.forward = _ExactTurns(2 * len(module.inv_freq))
    return model


class _ExactTurns:
    def __init__(self, head_size: int) -> None:
        self.speed_D = _THETA ** -(torch.arange(0, head_size, 2).double() / head_size).repeat(2)

    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle_1TD = position_ids[..., None] * self.speed_D
        return angle_1TD.cos(), angle_1TD.sin()


def look(query: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """One query's attention over some keys."""
    return weights(query, keys) @ torch.stack([*values])


def weights(query: torch.Tensor, keys: Sequence[torch.Tensor]) -> torch.Tensor:
    """How much of it each key gets."""
    weight_S = (torch.stack([*keys]) @ query / len(query) ** 0.5).exp()
    return weight_S / weight_S.sum()
