"""Making a teacher's predictions: the trial's base reads the training text in long windows, once, and what it predicts
is kept in the cache beside the text's tokens. All trials of the same base, text and teacher share it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from recur_tune.common.files import cache_folder, whole_folder
from recur_tune.common.made_once import made_once
from recur_tune.common.shape import Shape
from recur_tune.common.units import format_count, format_size
from recur_tune.common.windowing import NOT_SCORED, Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.flops import plain_reading_flops
from recur_tune.data.teacher import open_predictions
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.models import WindowedDecoder
from recur_tune.models.loss import padded_weight
from recur_tune.ops.device import autocast
from recur_tune.ops.reference import sum_dtype
from recur_tune.tasks.language_modelling.windows import evaluation_batches
from recur_tune.tasks.registry import Teacher
from recur_tune.tasks.task import token_bytes

_FORMAT = 1
_POSITIONS = 16_384  # read at a time
_ROWS = 1024  # positions that have logits at the same time

Progress = Callable[[int], None]


def taught(
    config: TrialConfig,
    model: WindowedDecoder,
    split: TokenisedSplit,
    device: torch.device,
    progress: Progress = lambda tokens: None,
) -> TokenisedSplit:
    """The training split with the predictions that the trial's loss needs, made now or at any earlier time.

    Args:
        config: The trial; where its loss needs no teacher, the split is returned as it is.
        model: The trial's untrained model, whose body is the teacher.
        split: The training text.
        device: Where the teacher reads; the model is moved there.
        progress: Called with the tokens that the teacher has predicted so far; it may raise.
    """
    teacher = config.teacher
    if teacher is None:
        return split
    folder = _folder(config, teacher, model, split)
    made_once(folder, lambda: _make(teacher, model.to(device), split, folder, progress))
    return replace(split, teacher=open_predictions(folder))


def described(teacher: Teacher, shape: Shape, tokens: int) -> str:
    """What making the predictions of so many tokens takes, in a sentence's words."""
    windowing = teacher.windowing(shape)
    flops = tokens * teacher_flops_per_token(teacher, shape)
    return (
        f"the base's own predictions of {format_count(tokens)} training tokens, in windows of {windowing.size} with "
        f"{windowing.overlap} read again: {format_size(tokens * teacher.bytes_per_token(shape))} in {cache_folder()}, "
        f"{flops:.3g} FLOPs, made once"
    )


def teacher_flops_per_token(teacher: Teacher, shape: Shape) -> float:
    """FLOPs of the teacher for each token of the training text: its blocks, and its head where it predicts."""
    return plain_reading_flops(shape, teacher.windowing(shape))


def _folder(config: TrialConfig, teacher: Teacher, model: WindowedDecoder, split: TokenisedSplit) -> Path:
    """Named by all that decides the content: the base's weights, the text's tokens, windows and k."""
    windowing = teacher.windowing(model.config.shape)
    digest = hashlib.sha256(f"{_FORMAT} {windowing.size} {windowing.overlap} {teacher.top}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not name.startswith("recurrence."):
            digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for array in (split.tokens, split.document_starts):
        digest.update(np.ascontiguousarray(array).data)
    return cache_folder() / f"teacher-{digest.hexdigest()[:20]}"


def _make(teacher: Teacher, model: WindowedDecoder, split: TokenisedSplit, folder: Path, progress: Progress) -> None:
    """All files or none."""
    token_type = f"uint{8 * token_bytes(model.config.shape.vocabulary)}"
    rows, done = len(split.tokens), 0
    with whole_folder(folder) as partial, _as_teacher(model):
        tokens = np.memmap(partial / "tokens.bin", token_type, "w+", shape=(rows, teacher.top))
        log_p = np.memmap(partial / "log_p.bin", "float16", "w+", shape=(rows, teacher.top + 1))
        for place_N, top_NQ, log_p_NR in _predictions(teacher, model, split):
            tokens[place_N], log_p[place_N] = top_NQ, log_p_NR
            done += len(place_N)
            progress(done)
        tokens.flush()
        log_p.flush()
        (partial / "meta.json").write_text(json.dumps({"token_type": token_type, "top": teacher.top}))


def _predictions(
    teacher: Teacher, model: WindowedDecoder, split: TokenisedSplit
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For some tokens at a time: their places, the likeliest next ones, and the logarithms of all parts."""
    windowing: Windowing = teacher.windowing(model.config.shape)
    device, vocabulary = model.device, len(model.lm_head.weight)
    with autocast(device, "auto"):
        head_VK = padded_weight(model.lm_head.weight)
    for batch, table_B5 in evaluation_batches(split, windowing, max(1, _POSITIONS // windowing.size), False):
        row, place = np.nonzero(batch.targets_WBT[0].numpy() != NOT_SCORED)
        with autocast(device, "auto"):
            top_BTK = model.read(batch.inputs_WBT[0].to(device), leave_state=False).top_BTK
        top_NK = top_BTK.flatten(0, 1)[torch.from_numpy(row * windowing.size + place).to(device)]
        made = [_likeliest(part, head_VK, vocabulary, teacher.top) for part in top_NK.to(head_VK.dtype).split(_ROWS)]
        top_NQ, log_p_NR = (torch.cat(parts).cpu().numpy() for parts in zip(*made, strict=True))
        yield table_B5[row, 0] + place, top_NQ, log_p_NR


def _likeliest(
    top_NK: torch.Tensor, head_VK: torch.Tensor, vocabulary: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens, and the logarithms of their probabilities and of all others' together."""
    score_NV = (top_NK @ head_VK.t())[:, :vocabulary].to(sum_dtype(head_VK))
    score_NQ, token_NQ = score_NV.topk(count)
    rest_N1 = score_NV.scatter_(1, token_NQ, -torch.inf).logsumexp(-1, keepdim=True)
    log_p_NR = torch.cat([score_NQ, rest_N1], dim=-1).log_softmax(-1)
    return token_NQ.int(), log_p_NR.half()


@contextmanager
def _as_teacher(model: WindowedDecoder) -> Iterator[None]:
    """The body alone, without a recurrence and without dropout."""
    recurrence, was_training = model.recurrence, model.training
    model.recurrence = None
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.recurrence = recurrence
        model.train(was_training)
