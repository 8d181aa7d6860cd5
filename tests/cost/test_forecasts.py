"""Costs of forecasts: FLOPs as torch counts them in a real step, and the memory that one takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Plan
from recur_tune.config.base_shape import trial_settings, trial_shape
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import counted_work, simulated_batch
from recur_tune.cost.descriptors import COSTS
from recur_tune.cost.estimate import estimate
from recur_tune.cost.flops import flops_per_token, training_flops_per_token
from recur_tune.models.pretrained import fresh_model, recurrent_config
from recur_tune.training.setup import set_up
from tests.series import waves, write_series

CPU = torch.device("cpu")
FIELDS: dict[str, dict[str, Any]] = {
    "dlinear": {"body": "dlinear"},
    "informer": {"body": "informer"},
    "rsa": {"body": "informer", "recurrence": "scores", "score_heads": 2},
    "patches": {},
    "pooled": {"recurrence": "pooled", "l_ins": "all", "width": 8},
    "cache": {"recurrence": "cache", "cache_rows": 4, "cache_sinks": 1},
    "scores": {"recurrence": "scores", "score_heads": 2},
    "gated_delta": {"recurrence": "gated_delta"},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"series:{write_series(tmp_path_factory.mktemp('series') / 'a.csv', waves(400, columns=3))}"


def config_of(corpus: str, name: str, **changes: Any) -> TrialConfig:
    usual = {
        "corpus": corpus, "horizon": 5, "patch": 4, "window": 24, "bptt_windows": 6, "batch": 2, "body_layers": 2,
        "body_width": 16, "body_heads": 2, "recurrence": "none", "tokens": 2000, "checkpointing": "none",
    }  # fmt: skip
    return TrialConfig(**usual | FIELDS[name] | changes)


@pytest.mark.parametrize("name", FIELDS)
def test_training_flops_are_torchs_count_of_a_step(name: str, corpus: str) -> None:
    config, kept = config_of(corpus, name), 6
    settings, shape = trial_settings(config), trial_shape(config)
    model = fresh_model(recurrent_config(settings, config.recurrence_spec, 0.0))
    batch = simulated_batch(6, config.batch, config.window, model=model)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        Chain(model, Plan(kept)).differentiate(batch)
    expected = counter.get_total_flops() / config.step_tokens
    counted = counted_work(config, settings)
    assert training_flops_per_token(config, shape, Plan(kept), counted) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["dlinear", "informer", "patches"])
def test_forward_flops_are_torchs_count_but_for_the_later_half_of_attention(name: str, corpus: str) -> None:
    """The count has causal attention at its average length, the step the whole square."""
    config = config_of(corpus, name)
    shape, model = trial_shape(config), fresh_model(recurrent_config(trial_settings(config), None, 0.0))
    [values], _ = model.blank(1, 1, config.window)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.forecast(model.read(values).top_BTK, values)  # type: ignore[attr-defined]
    positions = config.window // shape.patch
    hidden = 3 * shape.layers * 4 * shape.heads * shape.head_size * positions * (positions - 1) / 2
    assert flops_per_token(config, shape) * config.window + hidden == counter.get_total_flops()


@pytest.mark.parametrize("name", ["dlinear", "informer", "rsa", "patches", "pooled", "cache"])
def test_predicted_memory_is_that_of_a_step(name: str, corpus: str) -> None:
    config = config_of(corpus, name, dropout=0.1, tokens=600)  # three steps
    trainer, _ = set_up(config, CPU)
    [*_] = trainer.run()
    found = estimate(config, trial_settings(config))
    assert found.costs["peak_memory"] == pytest.approx(trainer.measured_peak_bytes, rel=0.04)
    assert found.costs["parameters"] == sum(one.numel() for one in trainer.model.parameters())


def test_a_stream_holds_its_window_and_its_state_for_every_column(corpus: str) -> None:
    cache_of_a_window = 2 * 2 * 16 * (24 // 4) * 4  # keys and values, layers, width, patches, bytes
    costs = {name: estimate(one, trial_settings(one)).costs for name in FIELDS for one in [config_of(corpus, name)]}
    assert costs["patches"]["inference_memory"] == 3 * cache_of_a_window
    assert costs["dlinear"]["inference_memory"] == 3 * 24 * 4
    state = 2 * 2 * 2 * 8 * 4  # layers, heads, a complex row
    assert costs["scores"]["inference_memory"] == 3 * (cache_of_a_window + state)


@pytest.mark.parametrize(
    ("field", "value"),
    [("horizon", 6), ("body", "dlinear"), ("patch", 6), ("body_layers", 1), ("body_width", 24), ("body_heads", 4)],
)
def test_a_cost_names_the_fields_that_it_depends_on(field: str, value: Any, corpus: str) -> None:
    before, after = (
        estimate(config, trial_settings(config)).costs
        for config in (config_of(corpus, "patches"), config_of(corpus, "patches", **{field: value}))
    )
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {name for name, cost in COSTS.items() if field in cost.fields}
    assert changed or field == "body_heads"
