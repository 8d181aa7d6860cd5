"""A base of one's own where none can be downloaded: pretrained once per preset, corpus and tokenizer, and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from recur_tune.errors import UserError
from recur_tune.files import cache_folder
from recur_tune.shape import Shape, shape_of
from recur_tune.shapes import PRESETS, PRETRAINING
from recur_tune.spec import TrialConfig, parse
from recur_tune.trial.fields import own_fields

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from recur_tune.training.loop import Report


def pretraining_fields(preset: str) -> dict[str, Any]:
    """How a preset is pretrained unless told otherwise: plain, over its whole context, with a falling rate."""
    return {
        **PRETRAINING[preset], "base": preset, "window": PRESETS[preset]["n_positions"],
        "recurrence": "none", "windows": 1, "decay": "cosine", "checkpointing": "none",
    }  # fmt: skip


def is_preset(base: str) -> bool:
    """Whether a base's name means a shape to pretrain here; a folder of that name wins."""
    return base in PRESETS and not Path(base).is_dir()


def base_shape(base: str, tokenizer: str | None) -> Shape:
    """The shape that a trial's base has, or will have."""
    return shape_of(base_settings(base, tokenizer).to_dict())


def base_settings(base: str, tokenizer: str | None) -> PretrainedConfig:
    """The configuration that a trial's base has, or will have: a preset is made for the tokenizer that it gets."""
    from recur_tune.corpus.tokenizers import load_tokenizer
    from recur_tune.model.pretrained import base_config

    if tokenizer is None:
        return base_config(base)
    tokens = len(load_tokenizer(tokenizer))
    settings = base_config(base, vocabulary=tokens)
    check_vocabulary(base, shape_of(settings.to_dict()), tokens)
    return settings


def check_vocabulary(base: str, shape: Shape, tokens: int) -> None:
    """Refuse a tokenizer with tokens that the base has never seen."""
    if tokens > shape.vocabulary:
        raise UserError(
            f"tokenizer: it has {tokens} tokens, and {base} only knows {shape.vocabulary}; "
            "use the one that the base was trained with."
        )


def pretrained_base(
    preset: str, corpus: str, tokenizer: str | None,
    listen: Callable[[Report, int], None] = lambda report, tokens: None,
) -> Path:  # fmt: skip
    """The folder of a pretrained preset, from the cache or made now; an interrupted pretraining goes on.

    `listen` hears every report, and how many tokens there will be.
    """
    config = parse(TrialConfig, {**pretraining_fields(preset), "corpus": corpus, "tokenizer": tokenizer})
    # Of a plain trial's own fields: an installed recurrence makes it no other base.
    key = hashlib.sha256(json.dumps(own_fields(config), sort_keys=True).encode()).hexdigest()[:12]
    folder = cache_folder() / "bases" / f"{preset}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.with_suffix(".lock")):  # one process pretrains, the others wait
        if not (folder / "result.json").exists():
            from recur_tune.trial.run_folder import RESUME, Interrupted, run_in_folder

            resume = (folder / RESUME).is_dir()
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)  # nothing in it to go on from
            try:
                run_in_folder(config, folder, resume, lambda report: listen(report, config.tokens))
            except Interrupted:  # saved; whoever asks again goes on from there
                raise KeyboardInterrupt from None
    return folder
