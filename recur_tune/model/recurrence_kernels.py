"""The Triton kernels of recurrences, one mechanism's a file. A passage has this module where a step runs them."""

from __future__ import annotations

from recur_tune.model.cache_kernels import attend_cached, keep_rows
from recur_tune.model.fast_weight_kernels import WIDEST, read_memory, write_memory
from recur_tune.model.score_kernels import mix_heads, rows_of_heads, score_weights

__all__ = [
    "WIDEST",
    "attend_cached",
    "keep_rows",
    "mix_heads",
    "read_memory",
    "rows_of_heads",
    "score_weights",
    "write_memory",
]
