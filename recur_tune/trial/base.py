"""A base of one's own where none can be downloaded: pretrained once per preset, corpus and tokenizer, and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from recur_tune.files import cache_folder
from recur_tune.shapes import PRESETS, PRETRAINING
from recur_tune.spec import TrialConfig, parse
from recur_tune.trial.fields import own_fields

if TYPE_CHECKING:
    from recur_tune.training.loop import Report


def pretraining_fields(preset: str) -> dict[str, Any]:
    """How a preset is pretrained unless told otherwise: plain, over its whole context, with a falling rate."""
    return {
        **PRETRAINING[preset], "base": preset, "window": PRESETS[preset]["n_positions"],
        "recurrence": "none", "windows": 1, "decay": "cosine", "checkpointing": "none",
    }  # fmt: skip


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
            from recur_tune.training.checkpoint import DamagedCheckpoint
            from recur_tune.trial.run_folder import RESUME, Interrupted, run_in_folder  # torch takes seconds

            resume = (folder / RESUME).is_dir()
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)  # nothing in it to go on from
            try:
                try:
                    run_in_folder(config, folder, resume, lambda report: listen(report, config.tokens))
                except DamagedCheckpoint:
                    shutil.rmtree(folder)
                    run_in_folder(config, folder, False, lambda report: listen(report, config.tokens))
            except Interrupted:  # saved; whoever asks again goes on from there
                raise KeyboardInterrupt from None
    return folder
