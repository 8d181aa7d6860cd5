"""Loading and saving models: bases by name, presets, known shapes, GGUF files, and Hugging Face's format on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from pydantic import BaseModel
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
)
from transformers.utils import logging as transformers_logging

from recur_tune.common.errors import UserError
from recur_tune.common.from_scratch import is_from_scratch, shape_named, sized
from recur_tune.common.gguf import unpacked
from recur_tune.common.hub import check_downloads, hub_message, use_cache_where_offline
from recur_tune.common.known_shapes import KNOWN_SHAPES, PRESET_TOKENIZERS, PRESETS
from recur_tune.common.shape import FAMILIES, family_of
from recur_tune.data.tokenizers import BYTES, load_tokenizer
from recur_tune.models.adapter import write_lora
from recur_tune.models.bodies import BODIES
from recur_tune.models.checked_weights import check_kind, check_loaded
from recur_tune.models.decoder import WindowedDecoder
from recur_tune.models.encoder import HEADS
from recur_tune.models.export import write_code
from recur_tune.models.trained import merged
from recur_tune.models.windowed import Windowed
from recur_tune.recurrences.registry import of_settings, settings_of

# Hugging Face's progress bars and load reports would break ours; errors raise anyway.
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()

# Types of rotary scaling that are the same for every window; others change with a text's length.
_ROTARY = ("default", "linear", "llama3", "yarn")
_ARCHITECTURES = {
    "AutoModelForCausalLM": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForQuestionAnswering": MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}
_OURS = {"recurrence", "window", "overlap", "auto_map"}
# Safetensors alone: a pickled checkpoint could run code. Always single precision: Adam's small updates would vanish in
# half-precision weights. What does not fit is told rather than raised, and refused by `check_loaded`.
_AS_TENSORS: dict[str, Any] = {
    "use_safetensors": True, "dtype": torch.float32, "ignore_mismatched_sizes": True, "output_loading_info": True,
}  # fmt: skip


def base_config(base: str, vocabulary: int | None = None) -> PretrainedConfig:
    """The configuration of a base without its weights: a preset, a shape alone, a folder, a GGUF file, a known name or
    any name on the Hub.

    `vocabulary` is for random weights; the default is that of their usual tokenizer.
    """
    if is_from_scratch(base):
        return _scratch_config(base, vocabulary)
    if base in PRESETS and not Path(base).is_dir():
        size = vocabulary or (256 if PRESET_TOKENIZERS[base] == "bytes" else 50257)
        return CONFIG_MAPPING["gpt2"](vocab_size=size, bos_token_id=None, eos_token_id=None, **PRESETS[base])
    short = base.removeprefix("openai-community/").removeprefix("distilbert/")
    if short in KNOWN_SHAPES and not Path(base).is_dir():
        settings = dict(KNOWN_SHAPES[short])
        return CONFIG_MAPPING[settings.pop("model_type", "gpt2")](**settings)
    use_cache_where_offline()
    try:
        config = _read_config(base)
    except UserError:
        raise
    except Exception as error:  # transformers raises OSError, ValueError or a Hub error for the same mistake
        raise UserError(hub_message("base", base, error, _suggestions())) from error
    return config


def _scratch_config(base: str, vocabulary: int | None) -> PretrainedConfig:
    """The configuration of a shape alone; what it is named after may have another vocabulary."""
    if settings := sized(base, vocabulary):
        return CONFIG_MAPPING[settings.pop("model_type")](**settings)
    named = base_config(shape_named(base), vocabulary)
    family = family_of(named.to_dict())
    if FAMILIES[family].is_encoder:
        raise UserError(f"base: {base} is the shape of an encoder, which predicts no next tokens; name a decoder's.")
    settings = {key: value for key, value in named.to_dict().items() if key not in {"model_type", *_OURS}}
    if vocabulary is not None:
        settings |= {"vocab_size": vocabulary, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return CONFIG_MAPPING[family](**settings)


def recurrent_config(base: PretrainedConfig, spec: BaseModel | None, dropout: float | None) -> Any:
    """A base's configuration with the recurrence added and, where it is given, another dropout rate.

    Weights of a GGUF file are read as full numbers, so what transformers notes of their former bits is left out.
    """
    left_out = {"model_type", "dtype", "quantization_config", *_OURS}
    settings = {key: value for key, value in base.to_dict().items() if key not in left_out}
    family = family_of(base.to_dict())
    if dropout is not None:
        settings |= dict.fromkeys(BODIES[family].dropout_fields, dropout)
    return BODIES[family].config_class(**settings, recurrence=settings_of(spec))


def made_config(settings: Mapping[str, Any]) -> Any:
    """The configuration of a body that is made from nothing, as `config.json` would describe it."""
    return BODIES[family_of(settings)].config_class(**{k: v for k, v in settings.items() if k != "model_type"})


def fresh_model(config: Any) -> Windowed:
    """A model of this configuration with random weights."""
    return BODIES[config.shape.family](config)


def described_model(described: str) -> Windowed:
    """The same from a configuration's JSON, which is hashable and so can be the key of a cache."""
    settings = json.loads(described)
    return fresh_model(BODIES[family_of(settings)].config_class.from_dict(settings))


def random_model(settings: Any) -> Windowed:
    """A body of random weights that is trained from nothing, and its recurrence open as its source has it."""
    model = fresh_model(settings)
    if model.recurrence is not None:
        model.recurrence.reset_from_scratch()
    return model


def load_base(
    base: str,
    spec: BaseModel | None,
    dropout: float | None = None,
    vocabulary: int | None = None,
    needs_heads: bool = False,
    as_stored: bool = False,
) -> Windowed:
    """A base with a recurrence (or none); weights of a preset, and of a shape alone, are random.

    The recurrence is the base's own where that has the same fields, and a fresh one otherwise. `dropout` replaces the
    base's own rates where it is given. An encoder without heads for answers gets random ones, unless it `needs_heads`.
    A decoder's weights may stay `as_stored`, in memory-mapped files and in their dtype, for `Trained.apply`.
    """
    config = base_config(base, vocabulary)
    if base in PRESETS and not Path(base).is_dir():
        return fresh_model(recurrent_config(config, spec, dropout))
    if is_from_scratch(base):
        return random_model(recurrent_config(config, spec, dropout))
    if FAMILIES[family_of(config.to_dict())].is_encoder:
        return _encoder(base, spec, dropout, needs_heads)
    weights, unread = _weights(base, as_stored)
    # The file's own configuration: a known shape has no rotary settings.
    ours = recurrent_config(weights.config, spec, dropout)
    with torch.device("meta"):
        model = fresh_model(ours)
    model.add_recurrence()
    found = weights.state_dict()
    if not _has_recurrence(weights.config, spec):
        found = {name: tensor for name, tensor in found.items() if not name.startswith("recurrence.")}
    model.load_state_dict(found, strict=False, assign=True)
    model.take_buffers(weights)
    model.tie_weights()
    model.unread = unread
    return model


def left_behind(base: str, spec: BaseModel | None) -> str | None:
    """A sentence where a trial does not take over its base's recurrence."""
    config = base_config(base)
    if getattr(config, "recurrence", None) is None or _has_recurrence(config, spec):
        return None
    other = "the trial has none" if spec is None else "the trial's is another, or has other fields"
    return f"base: the recurrence of {base} is left behind, since {other}; its other weights are kept."


def _encoder(base: str, spec: BaseModel | None, dropout: float | None, needs_heads: bool) -> Windowed:
    """An encoder with its heads and its recurrence; those that the base does not have are random."""
    use_cache_where_offline()
    try:
        config = _read_config(base)  # the file's own: a known shape has fewer settings
        ours, has_it = recurrent_config(config, spec, dropout), _has_recurrence(config, spec)
        fresh = () if needs_heads else HEADS
        if getattr(config, "recurrence", None) is None:
            fresh = (*fresh, "recurrence.")
        else:
            ours.recurrence = config.recurrence  # loaded as it was saved: another's weights might not fit
        model, found = BODIES[ours.shape.family].from_pretrained(base, config=ours, **_AS_TENSORS)
    except UserError:
        raise
    except Exception as error:  # as above
        check_downloads("base", base)
        raise UserError(hub_message("base", base, error, _suggestions())) from error
    check_downloads("base", base)
    check_loaded(f"base: {base}", model, found, fresh)
    model.unread = frozenset(found["unexpected_keys"])
    if not has_it:
        model.config.recurrence = settings_of(spec)
        model.add_recurrence()
    return model


def _has_recurrence(base: PretrainedConfig, spec: BaseModel | None) -> bool:
    """Whether a base was trained with this recurrence and the same fields."""
    settings = getattr(base, "recurrence", None)
    return spec is not None and settings is not None and of_settings(settings)[1] == spec


def _weights(base: str, as_stored: bool) -> tuple[Any, frozenset[str]]:
    """transformers' own model of a base, and the names of tensors in its files that no such model has."""
    use_cache_where_offline()
    try:
        _read_config(base)  # refuses what a known name may have become
        given = _AS_TENSORS | ({"dtype": "auto"} if as_stored else {})
        model, found = AutoModelForCausalLM.from_pretrained(unpacked(base, "weights", _unpack_weights), **given)
    except UserError:
        raise
    except Exception as error:  # as above, and a damaged file raises yet another type
        check_downloads("base", base)
        raise UserError(hub_message("base", base, error, _suggestions())) from error
    check_downloads("base", base)
    check_loaded(f"base: {base}", model, found)
    return model, frozenset(found["unexpected_keys"])


def _unpack_weights(file: Path, folder: Path) -> None:
    """Write a GGUF file's weights as safetensors in single precision, beside their configuration."""
    given = {"gguf_file": file.name, "dtype": torch.float32, "output_loading_info": True}
    model, found = AutoModelForCausalLM.from_pretrained(file.parent, **given)
    check_loaded(f"base: {file}", model, found)
    tensors = model.state_dict()
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]  # which the embedding's is
    save_torch_state_dict(tensors, folder)
    _unpack_settings(file, folder)


def save_model(model: Windowed, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> None:
    """Write the model in Hugging Face's format; LoRA is merged into its weights, and its matrices lie beside them. A
    model of numbers has no tokenizer.

    Without a recurrence the folder is a plain model of its family, which any tool opens. With one it holds the model's
    code too: transformers opens it with `trust_remote_code`, or without after `import recur_tune.models`. The family's
    own class opens the body.
    """
    if model.body.lora:
        write_lora(model, folder)
    is_whole = all(parameter.requires_grad for parameter in model.parameters())
    (model if is_whole else merged(model)).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if FAMILIES[model.config.shape.family].is_ours:
        return
    if model.recurrence is not None:
        write_code(folder)
        return
    family = model.config.shape.family
    settings = {key: value for key, value in model.config.to_dict().items() if key not in _OURS}
    settings |= {"model_type": family, "architectures": [_ARCHITECTURES[model.opened_by][family]]}
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def check_model(folder: Path) -> None:
    """Refuse a folder without a model, before anything is loaded."""
    if (folder / "trial.yaml").is_file() and not (folder / "config.json").is_file():
        raise UserError(
            f"model: {folder} has no model before a first validation; go on: recur-tune train --out {folder} --resume."
        )
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model: {folder} holds no model (no config.json); give a folder that `recur-tune train` wrote."
        )


def load_model(folder: Path) -> tuple[Windowed, PreTrainedTokenizerBase | None]:
    """A model that `save_model` wrote, with its tokenizer; a model of numbers has none."""
    check_model(folder)
    config = base_config(str(folder))
    is_ours = FAMILIES[family_of(config.to_dict())].is_ours
    if getattr(config, "recurrence", None) is None and not is_ours:
        return load_base(str(folder), None, needs_heads=True), load_tokenizer(str(folder))
    try:
        model, found = BODIES[config.shape.family].from_pretrained(folder, **_AS_TENSORS)
    except Exception as error:  # a damaged file raises safetensors' own type, a missing one OSError
        raise UserError(hub_message("model", str(folder), error, "another run")) from error
    check_loaded(f"model: {folder}", model, found)
    return model, None if is_ours else load_tokenizer(str(folder))


def load_decoder(folder: Path) -> tuple[WindowedDecoder, PreTrainedTokenizerBase]:
    """The same for a decoder; an encoder is refused."""
    model, tokenizer = load_model(folder)
    if not isinstance(model, WindowedDecoder) or tokenizer is None:
        kind = "forecasts numbers" if tokenizer is None else "is an encoder, which predicts no next tokens"
        raise UserError(f"model: {folder} {kind}; give a decoder's run.")
    return model, tokenizer


def base_tokenizer(base: str, chosen: str | None) -> str:
    """The tokenizer's name: the chosen one, else a preset's or a shape's usual one, else the base's own."""
    if chosen is not None:
        return chosen
    if is_from_scratch(base):
        return BYTES if sized(base) else base_tokenizer(shape_named(base), None)
    return PRESET_TOKENIZERS[base] if base in PRESETS and not Path(base).is_dir() else base


def _read_config(base: str) -> PretrainedConfig:
    settings, _ = PretrainedConfig.get_config_dict(unpacked(base, "config", _unpack_settings))
    family = family_of(settings)
    if family not in FAMILIES:
        raise UserError(
            f"base: {base} is of type {family!r}, which is not supported; these are: {', '.join(_of_texts())}."
        )
    check_kind(base, settings)
    is_ours = settings["model_type"] != family
    config = (BODIES[family].config_class if is_ours else CONFIG_MAPPING[family]).from_dict(settings)
    if FAMILIES[family].is_encoder and config.pad_token_id is None:
        raise UserError(f"base: {base} does not say which token is padding (pad_token_id in its config.json); add it.")
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary not in _ROTARY:
        raise UserError(
            f"base: {base} scales its rotary positions in the way {rotary!r}, which is not supported; these are: "
            f"{', '.join(_ROTARY)}."
        )
    return config


def _unpack_settings(file: Path, folder: Path) -> None:
    """Write what a GGUF file says of its model as config.json."""
    settings, _ = PretrainedConfig.get_config_dict(str(file.parent), gguf_file=file.name)
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _of_texts() -> list[str]:
    return [name for name, family in FAMILIES.items() if not family.is_ours]


def _suggestions() -> str:
    return f"a folder or a preset ({', '.join(PRESETS)})"
