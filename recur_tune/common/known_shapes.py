"""Model shapes known without a network: presets to pretrain here, and published models."""

from __future__ import annotations

from typing import Any

# Small models to pretrain here. Without dropout: they see each token about once.
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_NO_DROPOUT = dict.fromkeys(DROPOUTS, 0.0)
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 128, "initializer_range": 0.1, **_NO_DROPOUT},
    "mini": {"n_layer": 8, "n_embd": 512, "n_head": 8, "n_positions": 1024, **_NO_DROPOUT},
}
PRESET_TOKENIZERS = {"tiny": "bytes", "mini": "gpt2"}

# How each preset is pretrained unless told otherwise; the budget is minutes on the hardware that it is meant for.
PRETRAINING: dict[str, dict[str, Any]] = {
    "tiny": {"batch": 8, "learning_rate": 6e-3, "warmup_steps": 20, "tokens": 600_000},
    "mini": {"batch": 64, "learning_rate": 1e-3, "warmup_steps": 200, "tokens": 200_000_000},
}

# Published shapes in transformers' fields, so that `cost` works without the Hub; without a `model_type` it is a GPT-2.
KNOWN_SHAPES: dict[str, dict[str, Any]] = {
    "distilgpt2": {"n_layer": 6, "n_embd": 768, "n_head": 12},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12},
    "gpt2-medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16},
    "gpt2-large": {"n_layer": 36, "n_embd": 1280, "n_head": 20},
    "gpt2-xl": {"n_layer": 48, "n_embd": 1600, "n_head": 25},
    "roberta-base": {
        "model_type": "roberta", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1,
    },
    "bert-base-uncased": {
        "model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
    },
    "microsoft/mpnet-base": {
        "model_type": "mpnet", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 30527, "max_position_embeddings": 514,
    },
    "HuggingFaceTB/SmolLM2-135M": {
        "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "HuggingFaceTB/SmolLM2-360M": {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 960, "num_attention_heads": 15,
        "num_key_value_heads": 5, "intermediate_size": 2560, "vocab_size": 49152, "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "HuggingFaceTB/SmolLM2-1.7B": {
        "model_type": "llama", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 49152, "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "meta-llama/Llama-3.2-1B": {
        "model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": True,
    },
    "meta-llama/Llama-3.2-3B": {
        "model_type": "llama", "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 24,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": True,
    },
    "mistralai/Mistral-7B-v0.1": {
        "model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 32768,
        "sliding_window": 4096, "tie_word_embeddings": False,
    },
    "Qwen/Qwen2.5-0.5B": {
        "model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768,
        "use_sliding_window": False, "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-1.5B": {
        "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12,
        "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "max_position_embeddings": 131072,
        "use_sliding_window": False, "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-0.6B": {
        "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "max_position_embeddings": 40960, "use_sliding_window": False, "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-1.7B": {
        "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
        "max_position_embeddings": 40960, "use_sliding_window": False, "tie_word_embeddings": True,
    },
}  # fmt: skip
