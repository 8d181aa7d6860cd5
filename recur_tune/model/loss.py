"""The next-token loss over a large vocabulary and its gradients, made together a chunk of rows at a time.

Shape suffixes: N positions of a window in one row, K hidden size, V vocabulary, padded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from recur_tune.corpus.windows import NOT_SCORED

_ROWS = 4096  # positions whose logits exist at the same time, at most
_ALIGNED = 128  # matrix units are at their best with multiples of it, and far from it with an odd vocabulary


def padded(vocabulary: int) -> int:
    """How many columns the logits have."""
    return -(-vocabulary // _ALIGNED) * _ALIGNED


def padded_weight(weight_VK: torch.Tensor) -> torch.Tensor:
    """A copy of the projection with whole blocks of rows, in the type in which products run here."""
    device, vocabulary = weight_VK.device.type, len(weight_VK)
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VK.dtype
    return F.pad(weight_VK.detach().to(kind), (0, 0, 0, padded(vocabulary) - vocabulary))


@torch.no_grad()
def likelihoods(
    top_NK: torch.Tensor, padded_VK: torch.Tensor, target_N: torch.Tensor, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The negative log-likelihood of every row's target, and whether the target is the likeliest of all."""
    nll, correct = [], []
    for top, target in zip(top_NK.to(padded_VK.dtype).split(_ROWS), target_N.split(_ROWS), strict=True):
        logits_NV = (top @ padded_VK.t())[:, :vocabulary].to(_sum_type(padded_VK))
        nll.append(F.cross_entropy(logits_NV, target, reduction="none"))
        correct.append(logits_NV.argmax(-1) == target)
    return torch.cat(nll), torch.cat(correct)


class Head:
    """The vocabulary projection during one step: it scores windows and gathers the gradient of its weight.

    Logits are never whole, never kept and never made twice. Nothing of this is in autograd's graph: whoever asks for
    a window's loss gets the gradient of its input at the same time.
    """

    def __init__(self, weight_VK: torch.Tensor, compiled: bool = False) -> None:
        self.vocabulary, self.weight_VK = len(weight_VK), padded_weight(weight_VK)
        self._gathered_VK = torch.zeros_like(self.weight_VK, dtype=weight_VK.dtype)
        self._judge = compiled_judge() if compiled else judge_in_place

    @torch.no_grad()
    def score(self, top_NK: torch.Tensor, target_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of negative log-likelihoods over a window's scored positions, and its gradient by `top_NK`."""
        rows = top_NK.detach().to(self.weight_VK.dtype)
        gradient_NK = torch.empty_like(rows)
        total = torch.zeros((), dtype=_sum_type(rows), device=rows.device)
        chunks = -(-len(rows) // _ROWS)  # of the same size, so that a compiled one fits all
        size = -(-len(rows) // chunks)
        with torch.autocast(rows.device.type, enabled=False):
            for top, gradient, target in zip(
                rows.split(size), gradient_NK.split(size), target_N.split(size), strict=True
            ):
                loss, by_logits = self._judge(top @ self.weight_VK.t(), target, self.vocabulary)
                total += loss
                torch.mm(by_logits, self.weight_VK, out=gradient)
                self._gathered_VK += by_logits.t() @ top
        return total, gradient_NK.to(top_NK.dtype)

    @property
    def gradient(self) -> torch.Tensor:
        """What all windows so far say about the weight."""
        return self._gathered_VK[: self.vocabulary]


def judge_in_place(
    logits_NV: torch.Tensor, target_N: torch.Tensor, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed loss of some rows, and in the logits' place their gradient: softmax minus one-hot, zero where a row is
    not scored or a column is padding."""
    scored, place = target_N != NOT_SCORED, target_N.clamp(min=0)[:, None]
    log_p = logits_NV[:, :vocabulary].to(_sum_type(logits_NV)).log_softmax(-1)
    loss = -(log_p.gather(1, place)[:, 0] * scored).sum()
    gradient = log_p.exp_().scatter_add_(1, place, torch.full_like(place, -1, dtype=log_p.dtype))
    logits_NV.zero_()[:, :vocabulary] = gradient.mul_(scored[:, None])
    return loss, logits_NV


def judge_by_element(
    logits_NV: torch.Tensor, target_N: torch.Tensor, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same without a scatter: every element knows by itself what it is, which a compiler makes one pass of."""
    values = logits_NV.to(_sum_type(logits_NV))
    column_V, scored_N = torch.arange(values.shape[1], device=values.device), target_N != NOT_SCORED
    inside_V, wanted_NV = column_V < vocabulary, column_V == target_N[:, None]
    normaliser_N = torch.where(inside_V, values, -torch.inf).logsumexp(-1)
    loss = torch.where(scored_N, normaliser_N - torch.where(wanted_NV, values, 0.0).sum(-1), 0.0).sum()
    gradient = (values - normaliser_N[:, None]).exp() - wanted_NV.to(values.dtype)
    return loss, torch.where(inside_V & scored_N[:, None], gradient, 0.0).to(logits_NV.dtype)


Judge = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


@cache
def compiled_judge() -> Judge:
    """One for the process: it is compiled again only for another size."""
    return torch.compile(judge_by_element, dynamic=False)


def _sum_type(values: torch.Tensor) -> torch.dtype:
    """A softmax over a vocabulary wants at least single precision."""
    return torch.promote_types(values.dtype, torch.float32)
