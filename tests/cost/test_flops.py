"""Floating-point operations: the paper's tables, and torch's own count of a real step."""

from __future__ import annotations

from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Plan
from recur_tune.common.shape import shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.flops import flops_per_token, training_flops_per_token
from recur_tune.models.pretrained import base_config
from tests.conftest import small_config, small_model
from tests.models import full_batch

GPT2 = shape_of(base_config("gpt2").to_dict())
TABLE_1 = {0: 1.75e8, 5: 1.78e8, 10: 1.81e8, 30: 1.94e8, 50: 2.10e8}
TABLE_2 = {75: 2.33e8, 100: 2.62e8, 150: 3.50e8, 200: 5.25e8}
WINDOWS, LANES, SIZE = 3, 2, 16
PLANS = [Plan(1), Plan(2), Plan(WINDOWS)]


@pytest.mark.parametrize("recurrence", ["none", "pooled"])
@pytest.mark.parametrize(("overlap", "published"), (TABLE_1 | TABLE_2).items())
def test_flops_per_token_are_the_papers(recurrence, overlap, published):
    config = TrialConfig(recurrence=recurrence, window=300, overlap=overlap)
    assert flops_per_token(config, GPT2) == pytest.approx(published, rel=0.005)


def test_the_recurrence_costs_next_to_nothing_but_something():
    none, pooled = (flops_per_token(TrialConfig(recurrence=kind), GPT2) for kind in ("none", "pooled"))
    network = 2 * (768 * 200 + 200 * 200 + 200 * 200 + 200 * 768)
    key_and_value, looks = 2 * 2 * 768 * 768, 300 * 2 * 2 * 768
    assert pooled - none == pytest.approx((network + key_and_value + looks) / 300)


def counted(config: TrialConfig, plan: Plan) -> float:
    """A step's operations per scored token as torch counts them; it knows no fused kernel of the CPU."""
    model = small_model(config.recurrence_spec, n_layer=2)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        Chain(model, plan).differentiate(full_batch(WINDOWS, LANES, SIZE))
    return counter.get_total_flops() / (LANES * WINDOWS * SIZE)


def priced(config: TrialConfig, plan: Plan) -> float:
    return training_flops_per_token(config, shape_of(small_config(n_layer=2).to_dict()), plan)


def config_of(**fields: Any) -> TrialConfig:
    return TrialConfig(**{"window": SIZE, "bptt_windows": WINDOWS, "batch": LANES, "width": 20} | fields)


VARIANTS = [
    {"recurrence": "none"}, {}, {"l_ins": 1, "pooling": "max"}, {"l_ins": "all", "depth": 1}, {"embeddings": 2},
    {"embeddings": 3, "pooling": "recent"},
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_training_flops_are_what_torch_counts(variant, plan):
    config = config_of(**variant)
    assert priced(config, plan) == pytest.approx(counted(config, plan), rel=1e-12)


@pytest.mark.parametrize("plan", PLANS[:2], ids=str)
def test_pooling_by_attention_adds_two_products_of_which_torch_counts_one(plan):
    config = config_of(pooling="attention")
    runs = 3 * (WINDOWS - 1) + (WINDOWS - plan.kept_windows)
    a_matrix_times_a_vector = 2 * SIZE * 24
    expected = counted(config, plan) + runs * a_matrix_times_a_vector / (WINDOWS * SIZE)
    assert priced(config, plan) == pytest.approx(expected, rel=1e-12)


def test_overlap_makes_every_scored_token_dearer():
    disjoint, overlapped = (priced(config_of(overlap=overlap), Plan(1)) for overlap in (0, 4))
    assert overlapped / disjoint == pytest.approx(WINDOWS * SIZE / (SIZE + (WINDOWS - 1) * (SIZE - 4)))
