"""Which fields enter a cost, against what the cost is when each of them changes."""

from __future__ import annotations

from typing import Any

import pytest

from recur_tune.cost.estimate import quick_costs, recurrence_parameters, training_flops
from recur_tune.cost.fields import ENTERING
from recur_tune.cost.memory import predict_peak_memory, resolve_plan
from recur_tune.recurrences import names_of
from recur_tune.searching.objectives import COSTS
from recur_tune.shape import shape_of
from recur_tune.spec import TrialConfig
from tests.conftest import small_config

BASE = small_config(n_layer=2)
SHAPE_OF_BASE = shape_of(BASE.to_dict())
FIRST = {"window": 8, "windows": 3, "batch": 2, "width": 20, "depth": 2, "precision": "float32", "dropout": 0.0}
# Another value for every field, but for those that only stand for a base's shape.
OTHERS: dict[str, Any] = {
    "recurrence": "none", "l_ins": "all", "width": 30, "depth": 1, "pooling": "attention", "embeddings": 2,
    "skip": True, "write_rule": "gated", "fast_layers": 1, "score_heads": 2, "dilation": 2,
    "window": 16, "overlap": 2, "windows": 4, "batch": 3, "learning_rate": 1e-2, "recurrence_rate": 3.0,
    "tune": "recurrence",
    "warmup_steps": 7, "decay": "cosine", "weight_decay": 0.1, "clip_norm": 0.5, "dropout": 0.1, "tokens": 5000,
    "validate_every": 77, "validation_tokens": 99, "patience": 2, "checkpointing": "none", "memory_budget": 2**30,
    "precision": "bfloat16", "speed": "plain", "seed": 5,
}  # fmt: skip
SHAPE = {"base", "corpus", "tokenizer"}
BY_PLAN = {"batch", "dropout", "precision", "memory_budget", "skip"}  # change the work only by what 'auto' keeps
NOT_IN = {"dilation": {"parameters"}}  # costs that products enter, but not this field


def closed_costs(config: TrialConfig) -> dict[str, float]:
    return {
        **quick_costs(config, SHAPE_OF_BASE, BASE),
        "training_flops_per_token": training_flops(config, SHAPE_OF_BASE, BASE, resolve_plan(config, BASE)),
        "parameters": SHAPE_OF_BASE.parameters + recurrence_parameters(config, SHAPE_OF_BASE),
    }


def test_every_cost_and_every_field_is_told() -> None:
    assert OTHERS.keys() | SHAPE == TrialConfig.model_fields.keys()
    assert ENTERING.keys() == COSTS.keys()


@pytest.mark.parametrize("field", OTHERS)
def test_a_cost_changes_with_the_fields_that_enter_it_and_with_no_other(field: str) -> None:
    first = FIRST | {"recurrence": next(iter(names_of(field)), "pooled")}
    before, after = TrialConfig(**first), TrialConfig(**first | {field: OTHERS[field]})
    known, changed = closed_costs(before), closed_costs(after)
    left_out = {"training_flops_per_token"} if field in BY_PLAN else NOT_IN.get(field, set())
    assert {name for name in known if changed[name] != known[name]} == {
        name for name in known if field in ENTERING[name] and name not in left_out
    }
    if field not in ENTERING["peak_memory"]:
        assert predict_peak_memory(after, BASE) == predict_peak_memory(before, BASE)


@pytest.mark.parametrize("name", ["fast_weights", "scores"])
def test_positions_that_come_again_are_not_kept_for_a_state(name: str) -> None:
    one, other = (TrialConfig(**FIRST, recurrence=name, score_heads=2, overlap=overlap) for overlap in (0, 4))
    assert predict_peak_memory(other, BASE) < predict_peak_memory(one, BASE) and "overlap" in ENTERING["peak_memory"]
