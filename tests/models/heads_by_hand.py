"""Transformers' own models with something mixed into their heads' output, for equations written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch

from recur_tune.models import WindowedDecoder
from tests.models.bodies import hugging_face

# Given a layer, queries [H, T, D], keys and values [G, T, D] without rotary positions, and what the heads took,
# [H, T, D]: what they take instead.
Mix = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class ByHand:
    """The plain model with the same weights, one batch row; `read` gives the last layer's output of a window."""

    def __init__(self, model: WindowedDecoder, mix: Mix) -> None:
        self.plain, self.shape, self.mix = hugging_face(model), model.config.shape, mix
        self._made: dict[str, torch.Tensor] = {}
        is_gpt2 = self.shape.family == "gpt2"
        for layer, block in enumerate(self.plain.transformer.h if is_gpt2 else self.plain.model.layers):
            attention = block.attn if is_gpt2 else block.self_attn
            for name in ("c_attn",) if is_gpt2 else ("q_proj", "k_proj", "v_proj"):
                getattr(attention, name).register_forward_hook(self._note(name))
            (attention.c_proj if is_gpt2 else attention.o_proj).register_forward_pre_hook(self._adapt(layer))

    def read(self, tokens_T: torch.Tensor) -> torch.Tensor:
        return self.plain.base_model(tokens_T[None], use_cache=False).last_hidden_state[0]

    def _note(self, name: str):
        def hook(_module, _inputs, output):
            self._made[name] = output[0]

        return hook

    def _adapt(self, layer: int):
        def hook(_module, inputs):
            made = self._made
            parts = made["c_attn"].chunk(3, dim=-1) if "c_attn" in made else [made[f"{one}_proj"] for one in "qkv"]
            q, k, v, out = (self._by_head(one) for one in (*parts, inputs[0][0]))
            return (self.mix(layer, q, k, v, out).transpose(0, 1).flatten(1)[None],)

        return hook

    def _by_head(self, x_TC: torch.Tensor) -> torch.Tensor:
        return x_TC.unflatten(-1, (-1, self.shape.head_size)).transpose(0, 1)
