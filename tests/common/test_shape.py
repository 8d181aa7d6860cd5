"""Shapes of decoders: their parameters are those of transformers' own models, and of published ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from recur_tune.common.known_shapes import KNOWN_SHAPES
from recur_tune.common.shape import shape_of

LLAMA = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "vocab_size": 61, "max_position_embeddings": 32, "tie_word_embeddings": False,
}  # fmt: skip
SETTINGS: list[dict[str, Any]] = [
    {"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 2, "vocab_size": 61, "n_positions": 32},
    {"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 2, "n_inner": 30},
    {"model_type": "llama", **LLAMA},
    {"model_type": "llama", **LLAMA, "tie_word_embeddings": True},
    {"model_type": "llama", **LLAMA, "attention_bias": True},
    {"model_type": "llama", **LLAMA, "mlp_bias": True, "head_dim": 10},
    {"model_type": "mistral", **LLAMA},
    {"model_type": "qwen2", **LLAMA},
    {"model_type": "qwen3", **LLAMA, "head_dim": 16},
    {"model_type": "qwen3", **LLAMA, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
]
PUBLISHED = {
    "gpt2": 124_439_808,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen3-0.6B": 596_049_920,
}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: ",".join(map(str, one.values())))
def test_parameters_are_those_of_transformers_own_model(settings: dict[str, Any]) -> None:
    config = AutoConfig.for_model(**settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape_of(config.to_dict()).parameters == model.num_parameters()


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_published_models_have_their_published_parameters(name: str, parameters: int) -> None:
    assert shape_of({"model_type": "gpt2", **KNOWN_SHAPES[name]}).parameters == parameters


def test_a_window_does_not_go_beyond_a_sliding_one() -> None:
    assert shape_of(KNOWN_SHAPES["mistralai/Mistral-7B-v0.1"]).context == 4096
    assert shape_of(KNOWN_SHAPES["Qwen/Qwen2.5-0.5B"]).context == 32768
