"""Which fields of a trial enter which cost: whatever the others are, it stays the same."""

from __future__ import annotations

from recur_tune.recurrences.registry import FIELDS, MECHANISMS
from recur_tune.tasks.registry import TASKS

_RECURRENCE = frozenset({"recurrence", *FIELDS})
_ALL = MECHANISMS.values()
_IN_PRODUCTS = {"recurrence"}.union(*(one.spec.model_fields.keys() - one.flops_independent_fields for one in _ALL))
_IN_STATE = {"recurrence"}.union(*(one.spec.model_fields.keys() - one.state_independent_fields for one in _ALL))
_OF_TASKS = set[str]().union(*(task.spec.model_fields.keys() - task.flops_independent_fields for task in TASKS))
_PRODUCTS = frozenset({*_IN_PRODUCTS, *_OF_TASKS, "base", "window", "overlap"})
_STEP = _RECURRENCE | {
    "base", "tokenizer", "window", "overlap", "bptt_windows", "batch", "dropout", "precision", "checkpointing",
    "memory_budget", "trainable",
    "cuda_graph", "fused_kernels", "tokens",  # these choose kernels, which keep less
}  # fmt: skip

ENTERING: dict[str, frozenset[str]] = {
    "flops_per_token": _PRODUCTS,
    "training_flops_per_token": _PRODUCTS | _STEP,  # 'auto' runs fewer windows again where memory is left
    "peak_memory": _STEP,
    "inference_memory": frozenset({*_IN_STATE, "base", "window", "precision"}),
    "parameters": frozenset({*_IN_PRODUCTS, "base", "tokenizer"}),
}
