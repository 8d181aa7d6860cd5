"""Models in and out of folders: bases by name, presets, known shapes, and Hugging Face's format on disk."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from pydantic import BaseModel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from recur_tune.corpus.tokenizers import load_tokenizer
from recur_tune.errors import UserError
from recur_tune.hub import hub_message, use_cache_where_offline
from recur_tune.model.language_model import RecurrentGPT2, RecurrentGPT2Config
from recur_tune.model.portable import write_code
from recur_tune.model.recurrence import Memory
from recur_tune.shapes import DROPOUTS, KNOWN_SHAPES, PRESET_TOKENIZERS, PRESETS

# Hugging Face's bars and load reports would break ours; what goes wrong raises anyway.
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()


def base_config(base: str, vocabulary: int | None = None) -> GPT2Config:
    """The shape of a base without its weights: a preset, a folder, a known name or any name on the Hub.

    `vocabulary` is the size that a preset gets; the default is what its usual tokenizer has.
    """
    if base in PRESETS and not Path(base).is_dir():
        size = vocabulary or (256 if PRESET_TOKENIZERS[base] == "bytes" else 50257)
        return GPT2Config(vocab_size=size, bos_token_id=None, eos_token_id=None, **PRESETS[base])
    short = base.removeprefix("openai-community/").removeprefix("distilbert/")
    if short in KNOWN_SHAPES and "model_type" not in KNOWN_SHAPES[short] and not Path(base).is_dir():
        return GPT2Config(**KNOWN_SHAPES[short])
    use_cache_where_offline()
    try:
        config = _read_config(base)
    except Exception as error:  # transformers raises OSError, ValueError or a Hub error for the same mistake
        raise UserError(hub_message("base", base, error, _suggestions())) from error
    return config


def recurrent_config(base: GPT2Config, memory: BaseModel | None, dropout: float | None) -> RecurrentGPT2Config:
    """A base's shape with the recurrence added and, where it is given, another dropout rate."""
    settings = {key: value for key, value in base.to_dict().items() if key not in ("model_type", "recurrence", "dtype")}
    if dropout is not None:
        settings |= dict.fromkeys(DROPOUTS, dropout)
    return RecurrentGPT2Config(**settings, recurrence=memory.model_dump() if memory else None)


def load_base(
    base: str, memory: BaseModel | None, dropout: float | None = None, vocabulary: int | None = None
) -> RecurrentGPT2:
    """A base with a fresh recurrence (or none) added; a preset's weights are drawn from torch's generator.

    `dropout` replaces the base's own rates where it is given.
    """
    config = base_config(base, vocabulary)
    if config.model_type == RecurrentGPT2Config.model_type and config.recurrence is not None:
        raise UserError(f"base: {base} already has a recurrence; give the plain GPT-2 that it was trained from.")
    ours = recurrent_config(config, memory, dropout)
    if base in PRESETS and not Path(base).is_dir():
        return RecurrentGPT2(ours)
    use_cache_where_offline()
    try:
        # Safetensors alone: a pickled checkpoint could run code. Single precision whatever the file has: Adam's
        # small steps vanish in a half-precision weight.
        weights = GPT2LMHeadModel.from_pretrained(base, use_safetensors=True, dtype=torch.float32).state_dict()
    except Exception as error:  # as above, and a damaged safetensors file raises yet another type
        raise UserError(hub_message("base", base, error, _suggestions())) from error
    with torch.device("meta"):
        model = RecurrentGPT2(ours)
    model.recurrence = Memory(ours.n_embd, ours.n_layer, **memory.model_dump()) if memory else None
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model


def save_model(model: RecurrentGPT2, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the model in Hugging Face's format. Without a recurrence the folder is a plain GPT-2, which any
    tool opens. With one it holds the model's code too: transformers opens it where recur-tune is not installed when
    it is told to trust that code, after `import recur_tune.model` without, and `GPT2LMHeadModel` finds the body."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if model.recurrence is not None:
        write_code(folder)
        return
    ours = {"recurrence", "window", "overlap"}
    settings = {key: value for key, value in model.config.to_dict().items() if key not in ours}
    settings |= {"model_type": GPT2Config.model_type, "architectures": [GPT2LMHeadModel.__name__]}
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def load_model(folder: Path) -> tuple[RecurrentGPT2, PreTrainedTokenizerBase]:
    """A model that `save_model` wrote, with its tokenizer."""
    if (folder / "trial.yaml").is_file() and not (folder / "config.json").is_file():
        raise UserError(
            f"model: {folder} has no model before a first validation; go on: recur-tune train --out {folder} --resume."
        )
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model: {folder} holds no model (no config.json); give a folder that `recur-tune train` wrote."
        )
    config = base_config(str(folder))
    if config.model_type != RecurrentGPT2Config.model_type:
        return load_base(str(folder), memory=None), load_tokenizer(str(folder))
    try:
        model = RecurrentGPT2.from_pretrained(folder, use_safetensors=True, dtype=torch.float32)
    except Exception as error:  # a damaged file raises safetensors' own type, a missing one OSError
        raise UserError(hub_message("model", str(folder), error, "another run")) from error
    return model, load_tokenizer(str(folder))


def base_tokenizer(base: str, chosen: str | None) -> str:
    """The tokenizer's name: the chosen one, else a preset's usual one, else the base's own."""
    if chosen is not None:
        return chosen
    return PRESET_TOKENIZERS[base] if base in PRESETS and not Path(base).is_dir() else base


def _read_config(base: str) -> GPT2Config:
    settings, _ = GPT2Config.get_config_dict(base)
    kind = settings.get("model_type")
    if kind == RecurrentGPT2Config.model_type:
        return RecurrentGPT2Config.from_dict(settings)
    if kind != GPT2Config.model_type:
        raise ValueError(f"it is of type {kind!r}, not gpt2")
    return GPT2Config.from_dict(settings)


def _suggestions() -> str:
    return f"a folder or a preset ({', '.join(PRESETS)})"
