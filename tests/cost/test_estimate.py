"""Parameters are counted without building anything, and an estimate is the sum of its parts."""

from __future__ import annotations

import pytest
import torch

from recur_tune.cost.estimate import body_parameters, estimate, recurrence_parameters
from recur_tune.cost.flops import flops_per_token, training_flops_per_token
from recur_tune.cost.memory import plan_memory
from recur_tune.errors import UserError
from recur_tune.model import RecurrentGPT2, RecurrentGPT2Config
from recur_tune.model.pretrained import base_config
from recur_tune.shapes import KNOWN_SHAPES, PRESETS
from recur_tune.spec import TrialConfig
from recur_tune.training.bptt import Plan
from tests.conftest import small_config, small_model

VARIANTS = [{"recurrence": "none"}, {}, {"l_ins": "all", "embeddings": 2, "pooling": "attention", "depth": 0}]


@pytest.mark.parametrize("name", [*KNOWN_SHAPES, *PRESETS])
def test_parameters_are_those_of_the_model_that_would_be_built(name):
    base = base_config(name)
    settings = {key: value for key, value in base.to_dict().items() if key != "model_type"}
    with torch.device("meta"):
        model = RecurrentGPT2(RecurrentGPT2Config(**settings, recurrence=TrialConfig().memory.model_dump()))
    assert body_parameters(base) + recurrence_parameters(TrialConfig(), base) == model.num_parameters()
    assert body_parameters(base) == sum(
        p.numel() for p in {*model.transformer.parameters(), *model.lm_head.parameters()}
    )


def test_gpt2_has_124_million_parameters():
    assert body_parameters(base_config("gpt2")) == 124_439_808


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_an_estimate_is_made_of_its_parts(variant):
    config, plan = TrialConfig(window=8, windows=2, batch=3, width=20, **variant), Plan(1)
    base = small_config(n_layer=2, n_inner=30)
    cost, model = estimate(config, base, workers=2), small_model(config.memory, n_layer=2, n_inner=30)
    assert cost.parameters == model.num_parameters()
    assert cost.recurrence_parameters == cost.parameters - small_model(n_layer=2, n_inner=30).num_parameters()
    assert cost.plan == plan
    assert cost.flops_per_token == flops_per_token(config, base)
    assert cost.training_flops_per_token == training_flops_per_token(config, base, plan)
    assert cost.peak_memory_bytes == plan_memory(config, base, plan, lanes=2)  # the busier of two workers


def test_what_the_base_cannot_do_is_refused_before_it_is_priced():
    with pytest.raises(UserError, match="window: 33"):
        estimate(TrialConfig(window=33), small_config())
    with pytest.raises(UserError, match="l_ins: 4"):
        estimate(TrialConfig(window=8, l_ins=4), small_config())
