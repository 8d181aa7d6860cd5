"""Which rows a cache keeps: a document's first, the last half, and of those between the ones with the best scores.

A candidate is a row of the cache or a position of the window; unfilled rows stand first. Scores need no state and no
gradient. Shapes do not depend on values, so that a CUDA graph can be captured.

- `keydiff`: minus the cosine of a key and the mean of all keys, each of length 1. Every key-value head chooses.
- `tova`: the attention of the window's last query, a mean over heads. All heads keep the same positions.
- `h2o`: the mean attention of those of the window's queries that see the row. Every key-value head chooses.

Shape suffixes: B batch rows, T positions, M rows, N candidates, H query heads, G key-value heads, D head size, C
columns, Q queries of a group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from recur_tune.recurrences.seam import as_given, single

# What a row's score loses against the next row's: equal tokens have equal keys, and rounding must not choose.
_OLDER = 1e-6
_LEAST = 1e-30  # attention whose logarithm is a number


def key_difference(key_BGND: torch.Tensor, hidden_B: torch.Tensor) -> torch.Tensor:
    """Score of candidates, [B, G, N]: how far each key is from the direction of all but the first `hidden_B`."""
    seen_BN = torch.arange(key_BGND.shape[2], device=hidden_B.device) >= hidden_B[:, None]
    with as_given(key_BGND):  # low precision would round most scores to the same
        direction_BGND = F.normalize(single(key_BGND), dim=-1)
        mean_BGD = direction_BGND.masked_fill(~seen_BN[:, None, :, None], 0).sum(2)
        return -(direction_BGND @ F.normalize(mean_BGD, dim=-1)[..., None])[..., 0]


def attention_received(q_BHTD: torch.Tensor, key_BGND: torch.Tensor, hidden_B: torch.Tensor) -> torch.Tensor:
    """Attention to each row and to each position so far: a sum over queries, a mean over a group's heads, [B, G, N].

    Args:
        q_BHTD: The last queries so far.
        key_BGND: Keys of all rows and all positions so far.
        hidden_B: How many of the rows each batch row does not see, counted from the first.
    """
    (heads, queries), (groups, keys) = q_BHTD.shape[1:3], key_BGND.shape[1:3]
    q_BGQD = (q_BHTD * q_BHTD.shape[-1] ** -0.5).unflatten(1, (groups, -1)).flatten(2, 3)
    logit_BHTN = single(q_BGQD @ key_BGND.transpose(2, 3)).unflatten(2, (heads // groups, queries)).flatten(1, 2)
    number_N = torch.arange(keys, device=q_BHTD.device)
    causal_TN = number_N <= number_N[keys - queries :, None]
    seen_BTN = causal_TN & (number_N >= hidden_B[:, None])[:, None]
    weight_BHTN = logit_BHTN.masked_fill(~seen_BTN[:, None], -torch.inf).softmax(-1)
    return weight_BHTN.sum(2).unflatten(1, (groups, -1)).mean(2)


def last_attention(received_BGN: torch.Tensor) -> torch.Tensor:
    """Score of candidates, [B, G, N], from the attention of one query: the same for all heads."""
    return _score(received_BGN.mean(1, keepdim=True)).expand_as(received_BGN)


def mean_attention(received_BGN: torch.Tensor, rows: int) -> torch.Tensor:
    """Score of candidates, [B, G, N], from the attention of all the window's queries. All see the first `rows`."""
    queries = received_BGN.shape[-1] - rows
    own_N = torch.arange(-rows, queries, device=received_BGN.device).clamp(min=0)
    return _score(received_BGN / (queries - own_N))


def _score(attention_BGN: torch.Tensor) -> torch.Tensor:
    return attention_BGN.clamp(min=_LEAST).log()


def recent(filled_B: torch.Tensor, count: int, rows: int, sinks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each row that stays comes from, of the last `filled_B` rows and then the window's first `count` positions:
    the document's first `sinks` stay, and the last of all.

    Returns its position in the window, below 0 where it is a row already, and its number among the rows, [B, M].
    """
    all_B1 = filled_B.long()[:, None] + count
    kept_BM = torch.arange(rows, device=filled_B.device) - (rows - all_B1).clamp(min=0)
    kept_BM = kept_BM + (all_B1 - rows).clamp(min=0) * (kept_BM >= sinks)
    own_BM = kept_BM - filled_B.long()[:, None]
    return own_BM, (own_BM + rows).clamp(0, rows - 1)


def best(score_BGN: torch.Tensor, filled_B: torch.Tensor, candidates: int, rows: int, sinks: int) -> torch.Tensor:
    """The numbers of the candidates that stay, in the text's order, [B, G, M]: every key-value head's own.

    The first `rows` candidates are the cache's, the last `filled_B` of which are filled. Of scores for further
    positions nothing is used.
    """
    recent, slot_N = min(rows // 2, rows - sinks), torch.arange(candidates, device=filled_B.device)
    number_BN = slot_N - (rows - filled_B.long())[:, None]  # in the text's order; below 0 where a row is unfilled
    stays_BN = (number_BN < sinks) | (slot_N >= candidates - recent)
    score_BGN = score_BGN[..., :candidates] + _OLDER * number_BN[:, None]
    score_BGN = score_BGN.masked_fill(stays_BN[:, None], torch.inf)
    score_BGN = score_BGN.masked_fill((number_BN < 0)[:, None], -torch.inf)
    return score_BGN.topk(rows, sorted=False).indices.sort().values


def taken(candidate_BNC: torch.Tensor, chosen_BGM: torch.Tensor) -> torch.Tensor:
    """The candidates with these numbers, [B, M, C]."""
    candidate_BNxGD = candidate_BNC.unflatten(-1, (2, chosen_BGM.shape[1], -1))
    index_BMxGD = chosen_BGM.transpose(1, 2)[:, :, None, :, None].expand(-1, -1, 2, -1, candidate_BNxGD.shape[-1])
    return candidate_BNxGD.gather(1, index_BMxGD).flatten(2)
