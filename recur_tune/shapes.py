"""Model shapes that are known without a network: presets to pretrain here, and the published GPT-2s."""

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

# The published shapes, so that a cost can be told without the Hub.
KNOWN_SHAPES: dict[str, dict[str, int]] = {
    "distilgpt2": {"n_layer": 6, "n_embd": 768, "n_head": 12},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12},
    "gpt2-medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16},
    "gpt2-large": {"n_layer": 36, "n_embd": 1280, "n_head": 20},
    "gpt2-xl": {"n_layer": 48, "n_embd": 1600, "n_head": 25},
}
