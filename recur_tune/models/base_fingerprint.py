"""Fingerprint of a base: whether an adapter is beside the weights that it was trained beside.

Shapes alone do not tell: a base and its fine-tuned or merged form have the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from recur_tune.models.windowed import Windowed

_NUMBERS = 64  # of each matrix
_ROWS = 256  # of the embeddings: there may be further ones for a tokenizer with more tokens


def base_fingerprint(model: Windowed) -> dict[str, str]:
    """Hashes of some numbers of the embeddings and of the blocks' matrices, before LoRA. In bfloat16: a frozen base may
    be held so. Matrices in fewer bits are other numbers, so there the blocks have none."""
    found = {"embeddings": _hash([model.body.tokens.weight[:_ROWS]])}
    blocks = [weight for projection in model.body.projections for weight in projection.weights]
    return found | ({"blocks": _hash(blocks)} if blocks else {})


def _hash(weights: Iterable[torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for weight in weights:
        some = weight.detach().flatten()[:: max(1, weight.numel() // _NUMBERS)]
        whole.update(some.to(torch.bfloat16).cpu().view(torch.int16).numpy().tobytes())
    return whole.hexdigest()[:16]
