"""What a step costs where the recurrence alone learns."""

from __future__ import annotations

import pytest
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Plan
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import frozen_training_flops, simulated_batch
from recur_tune.cost.estimate import estimate
from recur_tune.models.pretrained import fresh_model, recurrent_config
from tests.models.bodies import BODIES

pytestmark = pytest.mark.slow  # real and simulated steps side by side

FIELDS = {"l_ins": 2, "width": 8, "depth": 1, "window": 8, "batch": 2}


def base_of(name: str):
    return CONFIG_MAPPING[BODIES[name]["model_type"]](**{k: v for k, v in BODIES[name].items() if k != "model_type"})


@pytest.mark.parametrize(("windows", "kept"), [(2, 1), (6, 1), (7, 3), (6, 6)])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_frozen_bodys_flops_are_those_of_a_real_step(name, windows, kept):
    config = TrialConfig(**FIELDS, bptt_windows=windows, trainable="recurrence")
    model = fresh_model(recurrent_config(base_of(name), config.recurrence_spec, None))
    model.freeze_body()
    with FlopCounterMode(display=False) as counter:
        Chain(model, Plan(kept)).differentiate(simulated_batch(windows, 1, 8))
    expected = counter.get_total_flops() / config.windowing.span(windows)
    assert frozen_training_flops(config, base_of(name), kept) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_frozen_body_has_no_gradients_and_no_moments_to_keep(name):
    base = base_of(name)
    whole, frozen = (
        estimate(TrialConfig(**FIELDS, bptt_windows=3, trainable=one), base) for one in ("all", "recurrence")
    )
    body = 4 * (whole.costs["parameters"] - whole.recurrence_parameters)
    assert whole.costs["peak_memory"] - frozen.costs["peak_memory"] > 2.9 * body  # a gradient and Adam's two moments
    assert frozen.costs["training_flops_per_token"] < 0.75 * whole.costs["training_flops_per_token"]
    assert frozen.costs["flops_per_token"] == whole.costs["flops_per_token"]
