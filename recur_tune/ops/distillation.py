"""Distillation's loss and gradient: the divergence from a teacher's likeliest tokens, mixed with the cross-entropy.

With q the teacher's probabilities of its k likeliest tokens, q' = 1 - sum of q the rest's, and p and p' the same of the
student:

    divergence = sum over the k of q (log q - log p), plus q' (log q' - log p')
    loss = (1 - w) (-log p of the next token) + w divergence

So the rest is one event: the divergence is that between distributions over k + 1 events, which is never more than
that over the whole vocabulary. Its gradient with respect to the logits is p - t, where t has q for the k tokens, and
shares q' among the others as the student does.

Shape suffixes: N rows, V vocabulary, padded, Q likeliest tokens, R the same and the rest.
"""

from __future__ import annotations

import torch

from recur_tune.common.windowing import NOT_SCORED
from recur_tune.ops.reference import sum_dtype

_ROWS_AT_A_TIME = 512  # rows whose probabilities exist in single precision


def distillation(
    logits_NV: torch.Tensor,
    target_N: torch.Tensor,
    tokens_NQ: torch.Tensor,
    log_q_NR: torch.Tensor,
    weight: float,
    vocabulary: int,
) -> torch.Tensor:
    """The loss, summed over scored rows. Its gradient overwrites the logits, zero where a column is padding.

    Args:
        logits_NV: The student's.
        target_N: The next tokens.
        tokens_NQ: The teacher's likeliest.
        log_q_NR: Logarithms of their probabilities and of the rest's, as they were kept; they are normalised here.
        weight: Of the divergence, w above.
        vocabulary: Columns that are no padding.
    """
    losses = []
    for begin in range(0, len(target_N), _ROWS_AT_A_TIME):
        rows = slice(begin, begin + _ROWS_AT_A_TIME)
        found = _of_few(logits_NV[rows], target_N[rows], tokens_NQ[rows], log_q_NR[rows], weight, vocabulary)
        losses.append(found)
    return torch.stack(losses).sum()


def _of_few(
    logits_NV: torch.Tensor,
    target_N: torch.Tensor,
    tokens_NQ: torch.Tensor,
    log_q_NR: torch.Tensor,
    weight: float,
    vocabulary: int,
) -> torch.Tensor:
    """The same for rows whose probabilities fit into memory at once."""
    score_NV = logits_NV[:, :vocabulary].to(sum_dtype(logits_NV))
    tokens_NQ, target_N1 = tokens_NQ.long(), target_N.clamp(min=0)[:, None]
    scored_N1 = (target_N != NOT_SCORED).to(score_NV.dtype)[:, None]
    log_q_NR = log_q_NR.to(score_NV.dtype).log_softmax(-1)
    q_NR = log_q_NR.exp()

    top_NQ, wanted_N1 = score_NV.gather(1, tokens_NQ), score_NV.gather(1, target_N1)
    score_NV.scatter_(1, tokens_NQ, -torch.inf)  # the rest's sum on its own: what is left of 1 would have no digits
    share_NV = score_NV.softmax(-1)  # of the rest; one exponential for loss and gradient
    rest_N1 = score_NV.amax(-1, keepdim=True) - share_NV.amax(-1, keepdim=True).log()
    part_NR = torch.cat([top_NQ, rest_N1], dim=-1)
    whole_N1 = part_NR.logsumexp(-1, keepdim=True)
    log_p_NR = part_NR - whole_N1
    divergence_N1 = (q_NR * (log_q_NR - log_p_NR)).sum(-1, keepdim=True)
    loss_N1 = (1 - weight) * (whole_N1 - wanted_N1) + weight * divergence_N1

    gradient_NR = (log_p_NR.exp() - weight * q_NR) * scored_N1
    gradient_NV = share_NV.mul_(gradient_NR[:, -1:])
    gradient_NV.scatter_(1, tokens_NQ, gradient_NR[:, :-1])
    gradient_NV.scatter_add_(1, target_N1, (weight - 1) * scored_N1)
    logits_NV[:, :vocabulary] = gradient_NV
    logits_NV[:, vocabulary:] = 0
    return (loss_N1 * scored_N1).sum()
