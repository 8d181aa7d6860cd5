"""Set-up: configuration -> tokenizer, tokens, base, plan -> trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from recur_tune.bptt.collectives import worker_count
from recur_tune.bptt.trained import trained_of
from recur_tune.common.errors import UserError
from recur_tune.common.from_scratch import is_from_scratch
from recur_tune.common.shape import Shape, shape_of
from recur_tune.config.base_shape import check_vocabulary, is_preset, trial_settings, trial_shape
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.training_memory import resolve_plan
from recur_tune.data.corpora.registry import check_corpus
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.models import Windowed
from recur_tune.models.adapter import adapter_fields, load_adapter
from recur_tune.models.pretrained import base_config, base_tokenizer, load_base, random_model, recurrent_config
from recur_tune.ops.device import default_device
from recur_tune.tasks.seam import TaskCode
from recur_tune.training.calibration import calibrate_first
from recur_tune.training.loop import Trainer
from recur_tune.training.teacher import described, taught

Teaching = Callable[[str, int, int], None]  # what it takes, tokens that are done, and of how many


def no_teaching(words: str, tokens: int, total: int) -> None:
    """Nobody listens."""


def set_up(
    config: TrialConfig,
    device: torch.device | None = None,
    shard: bool = False,
    teaching: Teaching = no_teaching,
    loading: Callable[[int, int], None] = lambda done, total: None,
    stage: Callable[[str], None] = lambda text: None,
) -> tuple[Trainer, PreTrainedTokenizerBase | None]:
    """Load everything a trial needs; what does not fit together is refused before anything large is loaded.

    With `shard` each of several workers keeps a part of Adam's moments. Where a teacher's predictions have to be made,
    `teaching` hears what that takes, how many tokens are done, and of how many; it may raise. `loading` is told of the
    weights' bytes that have been moved to the device, and of all, and `stage` of what begins.
    """
    device = device or default_device()
    stage(f"reading {config.corpus} …")
    tokenizer = _fitting_tokenizer(config)
    task: TaskCode = config.task.build(config.task_spec)
    train = task.prepare(config.corpus, "train", tokenizer)
    validation = task.sample(task.prepare(config.corpus, "validation", tokenizer), config.validation_size)
    stage(f"loading {config.body_name} …")
    model = _seeded_model(config, tokenizer, as_stored=config.teacher is None)
    task.check(model, train)
    if config.teacher:
        train = _taught(config, model, train, device, teaching)
    trained_of(config, device).apply(model, device, loading)
    if config.adapter is not None and config.lora_spec is not None:
        load_adapter(Path(config.adapter), model, config.lora_spec, config.base)
    workers = worker_count()
    plan = resolve_plan(config, model.config, max(1, config.batch // workers), shards=workers if shard else 1)
    return Trainer(config, model, plan, train, validation, device, shard), tokenizer


def _taught(
    config: TrialConfig,
    model: Windowed,
    train: Any,
    device: torch.device,
    teaching: Teaching,
) -> Any:
    assert config.teacher is not None
    total = len(train.tokens)
    words = described(config.teacher, model.config.shape, total)
    return taught(config, model, train, device, lambda tokens: teaching(words, tokens, total))


def teach(config: TrialConfig, teaching: Teaching = no_teaching, device: torch.device | None = None) -> None:
    """Make the predictions that a trial's loss needs, before any trial does."""
    tokenizer = _fitting_tokenizer(config)
    train = config.task.build(config.task_spec).prepare(config.corpus, "train", tokenizer)
    _taught(config, _seeded_model(config, tokenizer), train, device or default_device(), teaching)


def training_text(config: TrialConfig) -> tuple[Shape, Any]:
    """The base's shape and the tokenised training split; what does not fit together is refused."""
    tokenizer = _fitting_tokenizer(config)
    assert tokenizer is not None, "it is a text"
    train = config.task.build(config.task_spec).prepare(config.corpus, "train", tokenizer)
    return shape_of(base_config(config.base, vocabulary=len(tokenizer)).to_dict()), train


def untrained(
    config: TrialConfig, device: torch.device | None = None
) -> tuple[Windowed, PreTrainedTokenizerBase | None]:
    """The model with which a trial's training would begin; the training texts are read only if they are measured."""
    tokenizer = _fitting_tokenizer(config)
    task: TaskCode = config.task.build(config.task_spec)
    model = _seeded_model(config, tokenizer).to(device or default_device())
    calibrate_first(model, lambda: task.prepare(config.corpus, "train", tokenizer))
    return model, tokenizer


def _fitting_tokenizer(config: TrialConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer, where base, corpus, tokenizer, teacher and adapter fit together; None where the task makes the
    body."""
    if config.teacher:
        _check_teacher(config.base)
    if config.adapter is not None:
        adapter_fields(Path(config.adapter))
    if config.task.body is not None:
        check_corpus(config.corpus)
        config.check_base(trial_shape(config))
        return None
    named = "base" if config.tokenizer is None else "tokenizer"
    tokenizer = load_tokenizer(base_tokenizer(config.base, config.tokenizer), field=named)
    shape = shape_of(base_config(config.base, vocabulary=len(tokenizer)).to_dict())
    config.check_base(shape)
    check_vocabulary(config.base, shape, len(tokenizer))
    check_corpus(config.corpus)
    return tokenizer


def _check_teacher(base: str) -> None:
    """Refuse a base that has nothing to teach."""
    if is_from_scratch(base):
        raise UserError(f"loss: 'distill' learns from the base, and {base} has random weights; give another.")
    if is_preset(base):
        raise UserError(
            f"loss: 'distill' learns from the base, and the preset {base!r} has random weights; pretrain it "
            f"with `recur-tune pretrain --preset {base}` and give the folder as base."
        )


def _seeded_model(config: TrialConfig, tokenizer: PreTrainedTokenizerBase | None, as_stored: bool = False) -> Windowed:
    """The base with the trial's recurrence, or the body that its task makes; random weights are those of the trial's
    seed."""
    torch.manual_seed(config.seed)
    if tokenizer is None:
        model = random_model(recurrent_config(trial_settings(config), config.recurrence_spec, config.dropout))
    else:
        model = load_base(config.base, config.recurrence_spec, config.dropout, len(tokenizer), as_stored=as_stored)
    windowing = config.windowing.in_patches(model.config.shape.patch)
    model.config.window, model.config.overlap = windowing.size, windowing.overlap
    return model
