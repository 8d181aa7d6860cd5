"""Which fields of a trial enter which cost: whatever the others are, it stays the same."""

from __future__ import annotations

from recur_tune.spec import MemorySpec

_RECURRENCE = frozenset({"recurrence", *MemorySpec.model_fields})
_PRODUCTS = (_RECURRENCE | {"base", "window", "overlap"}) - {"skip"}  # which only adds
_STEP = _RECURRENCE | {
    "base", "tokenizer", "window", "windows", "batch", "dropout", "precision", "checkpointing", "memory_budget",
}  # fmt: skip

ENTERING: dict[str, frozenset[str]] = {
    "flops_per_token": _PRODUCTS,
    "training_flops_per_token": _PRODUCTS | _STEP,  # 'auto' runs fewer windows again where memory is left
    "peak_memory": _STEP,
    "parameters": (_RECURRENCE | {"base", "tokenizer"}) - {"skip"},
}
