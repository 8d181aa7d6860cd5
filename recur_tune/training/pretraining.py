"""Pretraining of a base where none can be downloaded: once per preset, corpus and tokenizer, then cached."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from recur_tune.common.files import cache_folder, writing
from recur_tune.common.known_shapes import PRESETS, PRETRAINING
from recur_tune.common.parsing import parse
from recur_tune.config.fields import own_fields
from recur_tune.config.trial import TrialConfig
from recur_tune.tasks import registry as tasks
from recur_tune.training import RESULT

if TYPE_CHECKING:
    from recur_tune.training.loop import Report


def pretraining_fields(preset: str) -> dict[str, Any]:
    """Default fields of a preset's pretraining: no recurrence, windows of the full context, cosine decay."""
    return {
        **PRETRAINING[preset], "base": preset, "window": PRESETS[preset]["n_positions"],
        "recurrence": "none", "bptt_windows": 1, "decay": "cosine", "checkpointing": "none",
    }  # fmt: skip


def pretraining_of(preset: str, corpus: str, tokenizer: str | None) -> TrialConfig:
    """The trial that pretrains a preset on a corpus; without a tokenizer, with the preset's own."""
    return parse(TrialConfig, {**pretraining_fields(preset), "corpus": corpus, "tokenizer": tokenizer})


def pretrained_base(
    config: TrialConfig,
    listen: Callable[[Report], None] = lambda report: None,
    stop: Callable[[], bool] = lambda: False,
    wait: Callable[[], None] = lambda: None,
) -> Path:
    """The folder of a pretrained preset, from the cache or trained now; an interrupted pretraining is resumed.

    Args:
        config: How it is pretrained.
        listen: Called with every report.
        stop: Whether to save and raise `Interrupted`.
        wait: Called every second while another process pretrains it.
    """
    folder = _folder(config)
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock"), stop, wait):
        if kept_base(config) is None:
            _pretrain(config, folder, listen, stop)
    return folder


def kept_base(config: TrialConfig) -> Path | None:
    """The same folder, if the base is already pretrained."""
    folder = _folder(config)
    return folder if (folder / RESULT).exists() else None


def _folder(config: TrialConfig) -> Path:
    # Only fields that apply: an installed recurrence must not change the key, nor a task's field that none can have.
    fields = {name: value for name, value in own_fields(config).items() if name not in tasks.FIELDS}
    key = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]
    return cache_folder() / "bases" / f"{config.base}-{key}"


@contextmanager
def _alone(file: Path, stop: Callable[[], bool], wait: Callable[[], None]) -> Iterator[None]:
    """One process pretrains, the others wait."""
    lock = filelock.FileLock(file)
    while True:
        try:
            lock.acquire(timeout=1)
            break
        except filelock.Timeout:
            wait()
            if stop():
                from recur_tune.training.run_folder import Interrupted

                raise Interrupted from None
    try:
        yield
    finally:
        lock.release()


def _pretrain(config: TrialConfig, folder: Path, listen: Callable[[Report], None], stop: Callable[[], bool]) -> None:
    """Resume from an undamaged checkpoint, or start."""
    from recur_tune.training import RESUME
    from recur_tune.training.checkpoint import DamagedCheckpoint  # torch takes seconds
    from recur_tune.training.run_folder import run_in_folder

    if (folder / RESUME).is_dir():
        try:
            run_in_folder(config, folder, True, listen, stop=stop)
            return
        except DamagedCheckpoint:
            pass
    shutil.rmtree(folder, ignore_errors=True)
    run_in_folder(config, folder, False, listen, stop=stop)
