"""Cross-entropy of an answer over all windows of its question, and its gradients.

One softmax over all positions of all windows of a question chooses the start of the answer, and another its end. So
scores of different windows are comparable. Where an answer stands several times, in the text or in windows that
overlap, the probabilities of all its places are added up. The kind of an answer (a span, `yes` or `no`) is predicted
from the first position's output, max-pooled over windows (section 5.4 of the paper).

Targets: a window's first position has the kind of its question's answer; a position of the text has 0, and STARTS where
an answer starts, ENDS where one ends, or their sum; all others are not scored.

Shape suffixes: W windows, B batch rows, T positions, N positions of a window over all batch rows, K hidden size,
Q questions: as many places as there are windows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.common.windowing import ENDS, NOT_SCORED, STARTS
from recur_tune.data.batches import WindowBatch
from recur_tune.models.encoder import WindowedEncoder

SPAN = 0  # among the kinds of an answer
NEVER = -1e9  # a logit of probability zero


def answer_losses(
    spans_WBT2: torch.Tensor, kinds_Q3: torch.Tensor, targets_WBT: torch.Tensor, fresh_WB: torch.Tensor
) -> torch.Tensor:
    """Every question's cross-entropy [Q]; 0 in places without a question.

    Args:
        spans_WBT2: Logits of a start and of an end.
        kinds_Q3: Logits of the kinds, by the numbers of `questions_of`.
        targets_WBT: As above.
        fresh_WB: Windows that begin a question.
    """
    question_WB = questions_of(fresh_WB)
    of_all, of_right = (
        _log_sum_by_question(spans_WBT2.masked_fill(~those, NEVER).logsumexp(2), question_WB)
        for those in (in_text(targets_WBT)[..., None], at_answer(targets_WBT))
    )
    kind_Q = torch.full_like(question_WB.flatten(), NOT_SCORED).scatter_reduce(
        0, question_WB.flatten(), targets_WBT[..., 0].flatten(), "amax"
    )
    kind_loss_Q = F.cross_entropy(kinds_Q3, kind_Q, ignore_index=NOT_SCORED, reduction="none")
    return kind_loss_Q + (of_all - of_right).sum(-1) * (kind_Q == SPAN)


def in_text(targets: torch.Tensor) -> torch.Tensor:
    """Whether positions [..., T] are of the text: the scored ones but for the first, which has the kind."""
    text = targets != NOT_SCORED
    text[..., 0] = False
    return text


def at_answer(targets: torch.Tensor) -> torch.Tensor:
    """Where an answer starts, and where one ends, [..., T, 2]."""
    marks = targets.clamp(min=0)
    return torch.stack([marks & STARTS, marks & ENDS], dim=-1).bool() & in_text(targets)[..., None]


def questions_of(fresh_WB: torch.Tensor) -> torch.Tensor:
    """The number of each window's question, [W, B], from 0 to W B - 1."""
    batch_size = fresh_WB.shape[1]
    number_WB = fresh_WB.long().cumsum(0).clamp(min=1) - 1
    return number_WB * batch_size + torch.arange(batch_size, device=fresh_WB.device)


def pooled_over_windows(first_WBK: torch.Tensor, fresh_WB: torch.Tensor) -> torch.Tensor:
    """Max-pooling over the windows of every question, [Q, K]; zeros in places without a question."""
    first_NK = first_WBK.flatten(0, 1)
    place_NK = questions_of(fresh_WB).flatten()[:, None].expand_as(first_NK)
    return torch.zeros_like(first_NK).scatter_reduce(0, place_NK, first_NK, "amax", include_self=False)


def _log_sum_by_question(score_WB2: torch.Tensor, question_WB: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp over the windows of every question, [Q, 2]."""
    score_N2 = score_WB2.flatten(0, 1)
    place_N2 = question_WB.flatten()[:, None].expand_as(score_N2)
    highest_Q2 = torch.full_like(score_N2, NEVER).scatter_reduce(0, place_N2, score_N2.detach(), "amax")
    sums_Q2 = torch.zeros_like(score_N2).scatter_add(0, place_N2, (score_N2 - highest_Q2.gather(0, place_N2)).exp())
    return highest_Q2 + sums_Q2.clamp(min=torch.finfo(sums_Q2.dtype).tiny).log()


class SpanScorer:
    """Scores windows by the cross-entropy of answers, over all windows of a question together.

    When all windows have been seen, all logits are known, and so is the loss's gradient with respect to each. So
    windows can be recomputed one by one.
    """

    is_separate = False

    def __init__(self, model: WindowedEncoder, batch: WindowBatch, fused: bool) -> None:
        self._kind, self._targets_WBT, self._fresh_WB = model.answer_kind, batch.targets_WBT, batch.fresh_WB
        self._weight, self._bias = model.qa_outputs.parameters()
        self._spans: list[torch.Tensor] = []
        self._firsts: list[torch.Tensor] = []
        self._grad_spans: torch.Tensor | None = None
        self._totals: dict[nn.Parameter, torch.Tensor] = {
            one: torch.zeros_like(one) for one in (self._weight, self._bias)
        }

    @torch.no_grad()
    def see(self, window: int, top_NK: torch.Tensor) -> None:
        """Keep its logits, and the first position's output."""
        top_BTK = self._single(top_NK)
        with torch.autocast(top_NK.device.type, enabled=False):
            self._spans.append(F.linear(top_BTK, self._weight, self._bias))
        self._firsts.append(top_BTK[:, 0].clone())

    @torch.no_grad()
    def score(self, window: int, top_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All of the loss with the first window that is scored, and 0 with the others."""
        loss = top_NK.new_zeros((), dtype=self._weight.dtype)
        if self._grad_spans is None:
            loss = self._settle()
        assert self._grad_spans is not None
        grad_span_N2, top_BTK = self._grad_spans[window].flatten(0, 1), self._single(top_NK)
        with torch.autocast(top_NK.device.type, enabled=False):
            grad_top_BTK = (grad_span_N2 @ self._weight).view_as(top_BTK)
            self._totals[self._weight] += grad_span_N2.t() @ top_BTK.flatten(0, 1)
            self._totals[self._bias] += grad_span_N2.sum(0)
        grad_top_BTK[:, 0] += self._grad_firsts[window]
        return loss, grad_top_BTK.flatten(0, 1).to(top_NK.dtype)

    def gradients(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Of both heads."""
        yield from self._totals.items()

    @torch.enable_grad()
    def _settle(self) -> torch.Tensor:
        """The loss; its gradients with respect to what was kept and to the head for kinds are stored."""
        spans, firsts = (torch.stack(kept).requires_grad_() for kept in (self._spans, self._firsts))
        with torch.autocast(spans.device.type, enabled=False):
            kinds_Q3 = self._kind(pooled_over_windows(firsts, self._fresh_WB))
            loss = answer_losses(spans, kinds_Q3, self._targets_WBT, self._fresh_WB).sum()
        weights = list(self._kind.parameters())
        self._grad_spans, self._grad_firsts, *grad_weights = torch.autograd.grad(loss, [spans, firsts, *weights])
        self._totals |= dict(zip(weights, grad_weights, strict=True))
        self._spans, self._firsts = [], []
        return loss.detach()

    def _single(self, top_NK: torch.Tensor) -> torch.Tensor:
        """As [B, T, K], in the heads' own precision."""
        return top_NK.detach().unflatten(0, (self._fresh_WB.shape[1], -1)).to(self._weight.dtype)
