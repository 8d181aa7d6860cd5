"""Which rows leave a cache when a window ends: the candidates that do not stay, as many as the window brings.

A candidate is a row of the cache or a position of the window; unfilled rows stand first. They fill up the number where
fewer rows leave, so that shapes do not depend on values.

Shape suffixes: B batch rows, S sites (layers that keep rows), G key-value heads, M rows that stay, N rows that leave, A
candidates, D head size, C columns.
"""

from __future__ import annotations

import torch


def oldest(filled_B: torch.Tensor, count: int, rows: int, sinks: int) -> torch.Tensor:
    """The numbers of the candidates that leave where the document's first rows and the last of all stay, [B, N]."""
    filled_B1 = filled_B.long()[:, None]
    leaving_B1 = (filled_B1 + count - rows).clamp(min=0)
    order_BN = torch.arange(count, device=filled_B.device) - (count - leaving_B1)  # below 0: an unfilled row
    unfilled_B1 = rows - filled_B1
    return torch.where(order_BN >= 0, unfilled_B1 + sinks + order_BN, order_BN + count - leaving_B1)


def others(chosen_BSGM: torch.Tensor, candidates: int) -> torch.Tensor:
    """The numbers of the candidates that were not chosen, in the text's order, [B, S, G, N]."""
    number_A = torch.arange(candidates, device=chosen_BSGM.device)
    stays_BSGA = torch.zeros((*chosen_BSGM.shape[:3], candidates), dtype=torch.bool, device=chosen_BSGM.device)
    stays_BSGA.scatter_(3, chosen_BSGM, value=True)
    rank_BSGA = torch.where(stays_BSGA, candidates, number_A)
    return rank_BSGA.topk(candidates - chosen_BSGM.shape[3], largest=False).values


def taken_apart(rows_BSMC: torch.Tensor, own: list[torch.Tensor], index_BSGN: torch.Tensor) -> list[torch.Tensor]:
    """Keys and values, each [B, S, G, N, D], of the candidates with these numbers; `own` are those of the window."""
    groups, size = own[0].shape[2], own[0].shape[-1]
    rows = rows_BSMC.to(own[0].dtype).unflatten(-1, (2, groups, size)).permute(3, 0, 1, 4, 2, 5)
    index_BSGND = index_BSGN[..., None].expand(*index_BSGN.shape, size)
    return [torch.cat(pair, dim=3).gather(3, index_BSGND) for pair in zip(rows, own, strict=True)]
