"""Which fields enter a cost, against what the cost is when each of them changes."""

from __future__ import annotations

from typing import Any

import pytest

from recur_tune.common.shape import shape_of
from recur_tune.config.trial import COMMON, FROZEN_FIELDS, LORA_FIELDS, TrialConfig
from recur_tune.cost.counted_flops import recurrence_parameters, training_flops
from recur_tune.cost.descriptors import COSTS
from recur_tune.cost.estimate import quick_costs
from recur_tune.cost.training_memory import predict_peak_memory, resolve_plan
from recur_tune.recurrences.registry import MECHANISMS
from tests.conftest import small_config

BASE = small_config(n_layer=2)
SHAPE_OF_BASE = shape_of(BASE.to_dict())
FIRST = {"window": 8, "bptt_windows": 3, "batch": 2, "width": 20, "depth": 2, "precision": "float32", "dropout": 0.0}
# Another value for every field of a mechanism, and for every trial's but those that only stand for a base's shape.
OF_MECHANISMS: dict[str, dict[str, Any]] = {
    "pooled": {"l_ins": "all", "width": 30, "depth": 1, "pooling": "attention", "embeddings": 2, "skip": True},
    "cache": {
        "cache_rows": 9, "cache_layer": 1, "cache_join": "gate", "cache_keep": "h2o", "cache_sinks": 1, "cache_bits": 8,
        "overflow": "gated_delta", "delta_every": 2, "beside": "scores", "score_heads": 2, "dilation": 2,
        "state_vectors": 3, "block_layer": 2, "block_gate": "lstm",
    },
    "tokens": {"state_tokens": 3, "ring": 2},
    "fast_weights": {"write_rule": "gated", "fast_layers": 1},
    "scores": {"score_heads": 2, "dilation": 2},
    "blocks": {"state_vectors": 3, "block_layer": 2, "block_gate": "lstm"},
    "gated_delta": {"delta_every": 2},
    "ttt": {"ttt_every": 1},
}  # fmt: skip
# A mechanism's field that means something beside another one alone:
BESIDE = {
    ("cache", "delta_every"): {"overflow": "gated_delta"},
    **{("cache", field): {"beside": "scores"} for field in ("score_heads", "dilation")},
    **{("cache", field): {"beside": "blocks"} for field in ("state_vectors", "block_layer", "block_gate")},
}
OTHERS: dict[str, Any] = {
    "recurrence": "none", "window": 16, "overlap": 2, "bptt_windows": 4, "batch": 3, "learning_rate": 1e-2,
    "recurrence_rate": 3.0, "trainable": "recurrence",
    "warmup_steps": 7, "decay": "cosine", "weight_decay": 0.1, "clip_norm": 0.5, "dropout": 0.1, "tokens": 5000,
    "validate_every": 77, "validation_tokens": 99, "patience": 2, "checkpointing": "none", "memory_budget": 2**30,
    "precision": "bfloat16", "cuda_graph": False, "fused_kernels": False, "seed": 5,
}  # fmt: skip
OF_LORA: dict[str, Any] = {  # those below `trainable: lora`
    "lora_rank": 3, "lora_alpha": 1.0, "lora_targets": "mlp", "lora_dropout": 0.1, "lora_rate": 2.0,
    "adapter": "a-folder", "base_bits": 4,
}  # fmt: skip
SHAPE = {"base", "corpus", "tokenizer"}
# Change the work only by what 'auto' keeps:
BY_PLAN = {"batch", "dropout", "lora_dropout", "precision", "memory_budget", "cuda_graph", "fused_kernels", "tokens"}
BY_PLAN |= {"base_bits"}  # dequantising is no product
BY_PLAN |= {field for one in MECHANISMS.values() for field in one.flops_independent_fields}
# A mechanism's fields that enter products, and yet not all costs that products enter: neither a row, its
# choice nor a lag has weights, and rows are looked at as often in one softmax as apart.
NOT_IN = {
    "cache_rows": {"parameters"}, "cache_keep": {"parameters"}, "dilation": {"parameters"},
    "cache_join": {"flops_per_token"}, "window": {"parameters"},  # DLinear's alone depend on it
}  # fmt: skip


def closed_costs(config: TrialConfig) -> dict[str, float]:
    return {
        **quick_costs(config, SHAPE_OF_BASE, BASE),
        "training_flops_per_token": training_flops(config, SHAPE_OF_BASE, BASE, resolve_plan(config, BASE)),
        "parameters": SHAPE_OF_BASE.parameters + recurrence_parameters(config, SHAPE_OF_BASE),
    }


def test_every_cost_and_every_field_is_told() -> None:
    assert OTHERS.keys() | SHAPE | OF_LORA.keys() == COMMON and OF_LORA.keys() == LORA_FIELDS | FROZEN_FIELDS
    assert {name: {*others} for name, others in OF_MECHANISMS.items()} == {
        name: {*mechanism.spec.model_fields} for name, mechanism in MECHANISMS.items()
    }


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        *(("pooled", field, value) for field, value in (OTHERS | OF_LORA).items()),
        *((name, field, value) for name, others in OF_MECHANISMS.items() for field, value in others.items()),
    ],
)
def test_a_cost_changes_with_the_fields_that_enter_it_and_with_no_other(name: str, field: str, value: Any) -> None:
    beside = BESIDE.get((name, field), {}) | ({"trainable": "lora"} if field in OF_LORA else {})
    first = FIRST | {"recurrence": name} | beside
    before, after = TrialConfig(**first), TrialConfig(**first | {field: value})
    known, changed = closed_costs(before), closed_costs(after)
    left_out = {"training_flops_per_token"} if field in BY_PLAN else NOT_IN.get(field, set())
    assert {cost for cost in known if changed[cost] != known[cost]} == {
        cost for cost in known if field in COSTS[cost].fields and cost not in left_out
    }
    if field not in COSTS["peak_memory"].fields:
        assert predict_peak_memory(after, BASE) == predict_peak_memory(before, BASE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast_weights", "blocks"])
def test_positions_that_come_again_are_not_kept_for_a_state(name: str) -> None:
    one, other = (TrialConfig(**FIRST, recurrence=name, score_heads=2, overlap=overlap) for overlap in (0, 4))
    assert (
        predict_peak_memory(other, BASE) < predict_peak_memory(one, BASE) and "overlap" in COSTS["peak_memory"].fields
    )
