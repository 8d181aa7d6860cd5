"""Shape of a trial's base, before the base is loaded or pretrained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recur_tune.common.errors import UserError
from recur_tune.common.known_shapes import PRESETS
from recur_tune.common.shape import Shape, shape_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from recur_tune.config.trial import TrialConfig


def is_preset(base: str) -> bool:
    """Whether a base is a preset to pretrain here; a folder of that name comes first."""
    return base in PRESETS and not Path(base).is_dir()


def trial_shape(config: TrialConfig) -> Shape:
    """The shape of a trial's body: its base's, or that of the body which its task makes."""
    made = config.made_body
    return base_shape(config.base, config.tokenizer) if made is None else shape_of(made)


def trial_settings(config: TrialConfig) -> PretrainedConfig:
    """The configuration of a trial's body."""
    from recur_tune.models.pretrained import made_config

    made = config.made_body
    return base_settings(config.base, config.tokenizer) if made is None else made_config(made)


def base_shape(base: str, tokenizer: str | None) -> Shape:
    """The shape that a trial's base has, or will have."""
    return shape_of(base_settings(base, tokenizer).to_dict())


def base_settings(base: str, tokenizer: str | None) -> PretrainedConfig:
    """The configuration that a trial's base has, or will have: a preset is made for the tokenizer that it gets."""
    from recur_tune.data.tokenizers import load_tokenizer
    from recur_tune.models.pretrained import base_config

    if tokenizer is None:
        return base_config(base)
    tokens = len(load_tokenizer(tokenizer))
    settings = base_config(base, vocabulary=tokens)
    check_vocabulary(base, shape_of(settings.to_dict()), tokens)
    return settings


def check_vocabulary(base: str, shape: Shape, tokens: int) -> None:
    """Refuse a tokenizer with more tokens than the base's vocabulary."""
    if tokens > shape.vocabulary:
        raise UserError(
            f"tokenizer: it has {tokens} tokens, and {base} only knows {shape.vocabulary}; "
            "use the one that the base was trained with."
        )
