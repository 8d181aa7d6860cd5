"""Loss of next tokens over a large vocabulary, and its gradients, together and one chunk of rows at a time: the
cross-entropy, or what a teacher's predictions make of it.

Shape suffixes: W windows, B batch rows, T positions, N positions of a window over all batch rows, K hidden size,
V vocabulary, padded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.common.shape import padded
from recur_tune.data.batches import WindowBatch
from recur_tune.data.teacher import TeacherRows
from recur_tune.models.decoder import WindowedDecoder
from recur_tune.ops.dispatch import pointwise_for
from recur_tune.ops.distillation import distillation
from recur_tune.ops.matmul import add_product, product_dtype
from recur_tune.ops.reference import sum_dtype

_ROWS = 5120  # at most so many positions have logits at the same time
_ROWS_IN_SINGLE_PRECISION = 1024  # the same in evaluation, whose logits are exact and exist beside training's memory


def padded_weight(weight_VK: torch.Tensor) -> torch.Tensor:
    """The vocabulary projection, padded to whole blocks of rows, in the dtype of products: a copy, unless it is so."""
    missing, weight_VK = padded(len(weight_VK)) - len(weight_VK), weight_VK.detach().to(product_dtype(weight_VK))
    return F.pad(weight_VK, (0, 0, 0, missing)) if missing else weight_VK


@torch.no_grad()
def likelihoods(
    top_NK: torch.Tensor, padded_VK: torch.Tensor, target_N: torch.Tensor, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The negative log-likelihood of every row's target, and whether the target has the highest logit."""
    nll, correct = [], []
    rows = _ROWS_IN_SINGLE_PRECISION
    for top, target in zip(top_NK.to(padded_VK.dtype).split(rows), target_N.split(rows), strict=True):
        logits_NV = (top @ padded_VK.t())[:, :vocabulary].to(sum_dtype(padded_VK))
        nll.append(F.cross_entropy(logits_NV, target, reduction="none"))
        correct.append(logits_NV.argmax(-1) == target)
    return torch.cat(nll), torch.cat(correct)


class Head:
    """The vocabulary projection during one step: it scores windows and accumulates the gradient of its weight.

    Logits are made in chunks, once, and not kept. They are not in autograd's graph: a window's loss comes together with
    the gradient with respect to its input.
    """

    def __init__(self, weight_VK: torch.Tensor, fused: bool = False, is_trained: bool = True) -> None:
        """`fused` takes the Triton kernel; a weight that is not trained has no gradient."""
        self.vocabulary, self.weight_VK = len(weight_VK), padded_weight(weight_VK)
        self._gathered_VK = torch.zeros_like(self.weight_VK, dtype=weight_VK.dtype) if is_trained else None
        self._cross_entropy = pointwise_for(fused).cross_entropy

    @torch.no_grad()
    def score(
        self, top_NK: torch.Tensor, target_N: torch.Tensor, teacher: TeacherRows | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A window's cross-entropy, summed over scored positions, and its gradient with respect to `top_NK`; with a
        teacher's predictions of these positions, the loss that is mixed with the divergence from them."""
        rows = top_NK.detach().to(self.weight_VK.dtype)
        gradient_NK = torch.empty_like(rows)
        losses = []
        chunks = -(-len(rows) // _ROWS)
        size = -(-len(rows) // chunks)  # equal chunks, so that the last one is not small
        with torch.autocast(rows.device.type, enabled=False):
            for begin in range(0, len(rows), size):
                part = slice(begin, begin + size)
                top, gradient = rows[part], gradient_NK[part]
                logits = top @ self.weight_VK.t()
                losses.append(self._loss(logits, target_N[part], teacher, part))
                torch.mm(logits, self.weight_VK, out=gradient)  # the loss has overwritten them by their gradient
                add_product(self._gathered_VK, logits, top)
                del logits  # before the next are made
        return torch.stack(losses).sum(), gradient_NK.to(top_NK.dtype)

    def _loss(
        self, logits: torch.Tensor, target: torch.Tensor, teacher: TeacherRows | None, part: slice
    ) -> torch.Tensor:
        if teacher is None:
            return self._cross_entropy(logits, target, self.vocabulary)
        tokens, log_p = teacher.tokens[part], teacher.log_p[part]
        return distillation(logits, target, tokens, log_p, teacher.weight, self.vocabulary)

    @property
    def gradient(self) -> torch.Tensor:
        """Of the weight, accumulated over the windows so far."""
        assert self._gathered_VK is not None
        return self._gathered_VK[: self.vocabulary]


class NextTokenScorer:
    """Scores windows by the cross-entropy of next tokens, each on its own; with a teacher, by the mixed loss."""

    is_separate = True

    def __init__(self, model: WindowedDecoder, batch: WindowBatch, fused: bool) -> None:
        self._weight_VK, self._targets_WBT, self._teacher = model.lm_head.weight, batch.targets_WBT, batch.teacher
        self._head = Head(self._weight_VK, fused, is_trained=self._weight_VK.requires_grad)

    def see(self, window: int, top_NK: torch.Tensor) -> None:
        """Not needed."""

    def score(self, window: int, top_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A window's summed loss, and its gradient."""
        teacher = None if self._teacher is None else self._teacher.of_window(window)
        return self._head.score(top_NK, self._targets_WBT[window].flatten(), teacher)

    def gradients(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Of the vocabulary projection."""
        if self._weight_VK.requires_grad:
            yield self._weight_VK, self._head.gradient
