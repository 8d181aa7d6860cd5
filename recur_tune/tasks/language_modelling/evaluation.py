"""Perplexity as in the paper: the state is carried through a whole document, whatever its length."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recur_tune.common.precision import Precision
from recur_tune.common.units import counted
from recur_tune.common.windowing import NOT_SCORED, Windowing
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.models import WindowedDecoder
from recur_tune.models.loss import likelihoods, padded_weight
from recur_tune.ops.device import autocast
from recur_tune.tasks.language_modelling.windows import evaluation_batches
from recur_tune.tasks.reading import read_on
from recur_tune.tasks.seam import GivenState

_WORTH_A_REMARK = 200  # windows; fewer are read in seconds anyway
DEEPEST = 64  # depths of recurrence from here on are reported together


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a split. Sums are over scored tokens; every token after a document's first is one."""

    nll: float  # nats
    tokens: int
    words: int
    bytes: int
    correct: int
    answers: int
    answers_correct: int
    loss_by_position: list[float]  # nats per token at each position of a window, NaN where none was scored
    loss_by_depth: list[float]  # nats per token in the first, second, ... window of a document
    document_nll: list[float]
    document_words: list[int]
    document_bytes: list[int]
    seconds: float
    remarks: tuple[str, ...] = ()
    is_sample: bool = False  # its documents are stretches of those of the corpus

    def metrics(self) -> dict[str, float]:
        """The numbers that people compare."""
        metrics = {
            "token_perplexity": _exp(self.nll / self.tokens),
            "perplexity": _exp(self.nll / max(self.words, 1)),
            "bits_per_byte": self.nll / max(self.bytes, 1) / math.log(2),
            "loss": self.nll / self.tokens,
            "accuracy": self.correct / self.tokens,
        }
        if self.answers:
            metrics["answer_accuracy"] = self.answers_correct / self.answers
        return metrics

    def counts(self) -> dict[str, Any]:
        """What was scored, and how fast."""
        return {
            "tokens": self.tokens, "words": self.words, "bytes": self.bytes,
            "stretches of documents" if self.is_sample else "documents": len(self.document_nll),
            "tokens per second": f"{self.tokens / self.seconds:.0f}",
        }  # fmt: skip

    def tables(self) -> dict[str, list[dict[str, str]]]:
        """None."""
        return {}

    def report(self) -> dict[str, Any]:
        """Everything, as plain values for JSON: NaN, which JSON does not know, becomes null."""
        return {
            **self.metrics(),
            "tokens": self.tokens, "words": self.words, "bytes": self.bytes,
            "documents": len(self.document_nll),
            "document_nll": self.document_nll, "document_words": self.document_words,
            "document_bytes": self.document_bytes,
            "tokens_per_second": self.tokens / self.seconds,
            "loss_by_position": [None if math.isnan(x) else x for x in self.loss_by_position],
            "loss_by_depth": [None if math.isnan(x) else x for x in self.loss_by_depth],
        }  # fmt: skip


def evaluate(
    model: WindowedDecoder,
    split: TokenisedSplit,
    windowing: Windowing,
    batch_size: int = 16,
    precision: Precision = "auto",
    progress: Callable[[int], None] = lambda tokens: None,
    given: GivenState = "own",
) -> Evaluation:
    """Score a split. `batch_size` documents are read side by side; the result does not depend on how many.

    To see what the state is worth, every window can be `given` no state, or that of another document's window before
    instead of its own document's.
    """
    return _summarise(split, windowing, score_tokens(model, split, windowing, batch_size, precision, progress, given))


@dataclass(frozen=True)
class TokenScores:
    """What a model makes of every token of a split, as arrays over its tokens.

    Attributes:
        nll: Nats; 0 where a token was not scored.
        correct: Whether it was the likeliest.
        depth: The number of its window in the document; -1 where it was not scored.
        position: The position in that window from which it was predicted.
        seconds: That this took.
        remarks: Sentences on how it was read.
    """

    nll: np.ndarray
    correct: np.ndarray
    depth: np.ndarray
    position: np.ndarray
    seconds: float
    remarks: tuple[str, ...] = ()


@torch.no_grad()
def score_tokens(
    model: WindowedDecoder,
    split: TokenisedSplit,
    windowing: Windowing,
    batch_size: int = 16,
    precision: Precision = "auto",
    progress: Callable[[int], None] = lambda tokens: None,
    given: GivenState = "own",
) -> TokenScores:
    """Score every token of a split, with the arguments of `evaluate`."""
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    started = time.perf_counter()
    depth = np.full(len(split.tokens), -1, dtype=np.int64)  # -1: not scored
    position = np.zeros(len(split.tokens), dtype=np.int64)
    state, scored_so_far = None, 0
    carry_state = model.recurrence is not None
    places: list[np.ndarray] = []  # in the split, of the tokens that were scored, window by window
    answers: list[tuple[torch.Tensor, torch.Tensor]] = []  # what the model says of them, still on the device
    with autocast(device, precision):
        head_VK = padded_weight(model.lm_head.weight)
    for batch, table_B5 in evaluation_batches(split, windowing, batch_size, carry_state):
        on_device = batch.to(device)
        row, place = np.nonzero(batch.targets_WBT[0].numpy() != NOT_SCORED)
        rows = torch.from_numpy(row * windowing.size + place).to(device, non_blocking=True)
        with autocast(device, precision):
            top_BTK, state = read_on(model, on_device, table_B5, state, windowing.overlap, given)
        # Only what is scored is projected: in an overlapped window that may be a small part.
        top_NK, target_N = top_BTK.flatten(0, 1)[rows], on_device.targets_WBT[0].flatten()[rows]
        answers.append(likelihoods(top_NK, head_VK, target_N, len(model.lm_head.weight)))
        target = table_B5[row, 0] + place + 1
        places.append(target)
        depth[target], position[target] = table_B5[row, 4], place
        scored_so_far += batch.scored
        progress(scored_so_far)
    model.train(was_training)
    nll, correct = np.zeros(len(split.tokens), dtype=np.float32), np.zeros(len(split.tokens), dtype=bool)
    if places:
        where = np.concatenate(places)
        nll[where], correct[where] = (torch.cat(parts).cpu().numpy() for parts in zip(*answers, strict=True))
    remarks = few_side_by_side(split, windowing, batch_size) if carry_state else ()
    return TokenScores(nll, correct, depth, position, time.perf_counter() - started, remarks)


def few_side_by_side(split: TokenisedSplit, windowing: Windowing, batch_size: int) -> tuple[str, ...]:
    """A remark where long documents leave most rows of the batch empty: a state goes through a document window by
    window, so that only documents can be read side by side."""
    lengths = [-(-(end - begin) // windowing.stride) for begin, end in split.document_inputs()]
    rows = sum(lengths) / max(max(lengths, default=1), -(-sum(lengths) // batch_size))
    if rows > batch_size / 2 or sum(lengths) < _WORTH_A_REMARK:
        return ()
    busy = f"kept {rows:.2g} of {batch_size} rows busy, since a state goes through a"
    if split.is_sample:
        return (f"the sample {busy} stretch window by window; a larger --sample has more of them side by side.",)
    return (
        f"{counted(len(lengths), 'document')} {busy} document window by window; `--sample 100k` scores stretches of "
        "them side by side, each begun without a state.",
    )


def _summarise(split: TokenisedSplit, windowing: Windowing, found: TokenScores) -> Evaluation:
    nll, correct, depth, position = found.nll, found.correct, found.depth, found.position
    scored = depth >= 0
    # A document's first token is not scored, so neither are the word and the bytes that it begins.
    words, length = split.word_starts * scored, split.byte_lengths * scored
    documents = [slice(begin, end + 1) for begin, end in split.document_inputs()]
    return Evaluation(
        nll=float(nll.sum(where=scored, dtype=np.float64)),
        tokens=int(scored.sum()),
        words=int(words.sum(dtype=np.int64)),
        bytes=int(length.sum(dtype=np.int64)),
        correct=int(correct.sum()),
        answers=int(scored[split.answers].sum()),
        answers_correct=int(correct[split.answers].sum()),
        loss_by_position=_mean_by(position[scored], nll[scored], windowing.size),
        loss_by_depth=_mean_by(np.minimum(depth[scored], DEEPEST - 1), nll[scored], None),
        document_nll=[float(nll[d].sum(where=scored[d], dtype=np.float64)) for d in documents],
        document_words=[int(words[d].sum(dtype=np.int64)) for d in documents],
        document_bytes=[int(length[d].sum(dtype=np.int64)) for d in documents],
        seconds=found.seconds,
        remarks=found.remarks,
        is_sample=split.is_sample,
    )


def _mean_by(group: np.ndarray, value: np.ndarray, groups: int | None) -> list[float]:
    count = np.bincount(group, minlength=groups or 0)
    total = np.bincount(group, weights=value, minlength=groups or 0)
    return [t / c if c else math.nan for t, c in zip(total.tolist(), count.tolist(), strict=True)]


def _exp(value: float) -> float:
    """Perplexities overflow long before they mean anything."""
    return math.exp(value) if value < 700 else math.inf
