"""Small random models of every family, and transformers' own with the same weights."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import BaseModel
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from recur_tune.models import WindowedDecoder
from recur_tune.models.pretrained import fresh_model, recurrent_config

_SIZES = {
    "vocab_size": 61, "max_position_embeddings": 32, "hidden_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 61, "n_positions": 32, "n_embd": 24, "n_layer": 3, "n_head": 4,
        "initializer_range": 0.2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None,
        "eos_token_id": None,
    },
    "llama": {"model_type": "llama", **_SIZES},
    "llama, tied, with biases": {
        "model_type": "llama", **_SIZES, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
    },
    "llama 3's positions": {"model_type": "llama", **_SIZES, "rope_parameters": _LLAMA3},
    "yarn": {
        "model_type": "llama", **_SIZES,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10.0, "factor": 2.0,
                            "original_max_position_embeddings": 16},
    },
    "mistral": {"model_type": "mistral", **_SIZES, "sliding_window": None, "head_dim": 10},
    "qwen2": {"model_type": "qwen2", **_SIZES},
    "qwen3": {"model_type": "qwen3", **_SIZES, "head_dim": 8},
    "another activation": {"model_type": "llama", **_SIZES, "hidden_act": "gelu"},
}  # fmt: skip


def body(name: str, spec: BaseModel | None = None, **changes: object) -> WindowedDecoder:
    """In double precision, for close comparisons; every weight is random, biases and norms too."""
    settings = BODIES[name] | changes
    config = CONFIG_MAPPING[settings["model_type"]](**{k: v for k, v in settings.items() if k != "model_type"})
    model = fresh_model(recurrent_config(config, spec, None)).double().eval()
    with torch.no_grad():
        measured = [] if model.recurrence is None else model.recurrence.buffers()
        for numbers in (*model.parameters(), *measured):
            numbers.add_(0.2 * torch.randn_like(numbers))
    return model


def hugging_face(model: WindowedDecoder) -> nn.Module:
    """The plain model with the same weights, in transformers' own code.

    The Llama family's RMS norms round to single precision whatever they are given, as its simplest attention does; here
    they do not.
    """
    settings = {k: v for k, v in model.config.to_dict().items() if k not in ("recurrence", "window", "overlap")}
    family = model.config.shape.family
    config = CONFIG_MAPPING[family](**{k: v for k, v in settings.items() if k != "model_type"})
    plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager" if family == "gpt2" else "sdpa").to(
        model.dtype
    )
    weights = {k: v for k, v in model.state_dict().items() if not k.startswith("recurrence.")}
    plain.load_state_dict(weights)
    for module in plain.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = _Exact(module)
    return plain.eval()


class _Exact:
    def __init__(self, norm: nn.Module) -> None:
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
