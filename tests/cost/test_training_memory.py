"""Peak memory: what is predicted without data is what a real step needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import Plan
from recur_tune.bptt.step import train_step
from recur_tune.common.errors import UserError
from recur_tune.config.trial import TrialConfig
from recur_tune.cost import training_memory
from recur_tune.cost.training_memory import plan_memory, predict_peak_memory, resolve_plan, track_step
from tests.conftest import small_config, small_model
from tests.models import full_batch

pytestmark = pytest.mark.slow  # real and simulated steps side by side

LANES, SIZE = 2, 16
SHAPE = {"n_layer": 2}
STATES = (
    {"l_ins": "all", "embeddings": 2},
    {"recurrence": "cache", "cache_rows": 8, "overflow": "gated_delta"},
    {"recurrence": "cache", "cache_rows": 8, "beside": "scores"},
    {"recurrence": "ttt"},
)


def config_of(**fields: Any) -> TrialConfig:
    usual = {"window": SIZE, "bptt_windows": 3, "batch": LANES, "width": 20, "depth": 1, "precision": "float32"}
    return TrialConfig(**usual | fields)


def tracked(config: TrialConfig, plan: Plan, **shape: Any) -> int:
    """The peak of a real second step."""
    model = small_model(config.recurrence_spec, **SHAPE | shape).train()
    optimizer, batch = make_optimizer(model, 1e-3, 0.0), full_batch(config.bptt_windows, LANES, SIZE)
    chain = Chain(model, plan)
    train_step(chain, optimizer, batch, clip_norm=1.0, precision=config.precision)
    return track_step(MemoryTracker(), chain, optimizer, batch, config.precision)


@pytest.mark.parametrize("plan", [Plan(1), Plan(2), Plan(3)], ids=str)
@pytest.mark.parametrize("variant", [{"recurrence": "none"}, {}, *STATES], ids=str)
def test_the_prediction_is_the_peak_of_a_real_step(variant, plan):
    config = config_of(**variant)
    assert plan_memory(config, small_config(**SHAPE), plan, LANES) == pytest.approx(tracked(config, plan), rel=0.05)


def test_dropout_is_part_of_the_prediction():
    rates = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.1)
    config, plan = config_of(), Plan(3)
    real = tracked(config, plan, **rates)
    assert plan_memory(config, small_config(**SHAPE, **rates), plan, LANES) == pytest.approx(real, rel=0.05)
    assert real > 1.1 * tracked(config, plan)


def test_on_a_gpu_dropout_keeps_one_byte_an_element(monkeypatch):
    monkeypatch.setattr(training_memory, "default_device", lambda: torch.device("cuda"))
    rates = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.1)
    size, hidden, layers = 64, 24, 2

    def of_four_windows(**rates: float) -> int:
        """What four more windows cost, so that nothing of what a step needs but once is counted."""
        base = small_config(n_positions=size, n_layer=layers, **rates)
        few, many = (config_of(bptt_windows=windows, window=size) for windows in (8, 12))
        return plan_memory(many, base, Plan(12), LANES) - plan_memory(few, base, Plan(8), LANES)

    dropped = 4 * LANES * size * hidden * (1 + 2 * layers)  # the embeddings, and two sums in each layer
    assert of_four_windows(**rates) - of_four_windows() == dropped


def test_a_window_that_is_recomputed_still_costs_its_tokens_and_its_state():
    base = small_config(n_layer=1)
    few, many = (plan_memory(config_of(bptt_windows=n, l_ins=1, embeddings=2), base, Plan(1), LANES) for n in (10, 30))
    tokens, fresh, state = 2 * SIZE * 8, 1, 2 * 24 * 4
    assert many - few == 20 * LANES * (tokens + fresh + state)


# Every plan with either kind of model and in either precision, and every kind in both.
@pytest.mark.parametrize(
    ("plan", "plain", "recurrent"),
    [
        (Plan(1), "float32", "bfloat16"), (Plan(2), "bfloat16", "float32"),
        (Plan(5), "float32", "bfloat16"), (Plan(7), "bfloat16", "float32"),
    ],
    ids=str,
)  # fmt: skip
def test_the_extrapolated_peak_of_a_long_chain_is_a_real_step_s(plan, plain, recurrent):
    kinds = ({"recurrence": "none", "precision": plain}, {"l_ins": "all", "embeddings": 2, "precision": recurrent})
    for kind in kinds:
        config = config_of(bptt_windows=7, **kind)
        real = tracked(config, plan, n_layer=1)
        assert plan_memory(config, small_config(n_layer=1), plan, LANES) == pytest.approx(real, rel=0.003)


@pytest.mark.parametrize("plan", [Plan(1), Plan(2)], ids=str)
def test_parts_of_a_waiting_state_count_in_their_own_precision(plan):
    beside = {"recurrence": "cache", "cache_rows": 8, "cache_sinks": 0, "beside": "scores", "precision": "bfloat16"}
    config = config_of(bptt_windows=9, **beside)
    real = tracked(config, plan, n_layer=1)
    assert plan_memory(config, small_config(n_layer=1), plan, LANES) == pytest.approx(real, rel=0.003)


def test_a_fixed_policy_is_priced_as_its_plan():
    config, base = config_of(checkpointing="none"), small_config(**SHAPE)
    assert predict_peak_memory(config, base) == plan_memory(config, base, Plan(3), LANES)
    assert predict_peak_memory(config, base, chains=1) < predict_peak_memory(config, base)


def test_auto_stays_within_its_budget_and_keeps_more_with_more():
    base = small_config(**SHAPE)
    smallest, largest = (plan_memory(config_of(), base, plan, LANES) for plan in (Plan(1), Plan(3)))
    plans = []
    for budget in torch.linspace(smallest, largest, 60).ceil().int().tolist():
        config = config_of(checkpointing="auto", memory_budget=budget)
        plan = resolve_plan(config, base)
        assert plan_memory(config, base, plan, LANES) <= budget
        plans.append(plan.kept_windows)
    assert plans == sorted(plans)
    assert plans[0] == 1 and plans[-1] == 3


def test_auto_refuses_a_budget_in_which_nothing_fits():
    with pytest.raises(UserError, match="memory_budget: 1 bytes are less than the"):
        resolve_plan(config_of(checkpointing="auto", memory_budget=1), small_config(**SHAPE))


def test_auto_keeps_as_many_windows_as_fit(monkeypatch):
    monkeypatch.setattr(training_memory, "plan_memory", lambda _c, _b, plan, *_: 100 * plan.kept_windows)
    for budget in range(100, 900, 10):
        config = config_of(bptt_windows=8, checkpointing="auto", memory_budget=budget)
        assert resolve_plan(config, small_config()) == Plan(min(budget // 100, 8))


def test_a_recurrences_buffers_are_part_of_the_prediction():
    rows = {"recurrence": "cache", "cache_rows": 4}
    placed, apart = (config_of(**rows, cache_join=join) for join in ("softmax", "gate"))
    softmax, gate = (plan_memory(config, small_config(**SHAPE), Plan(1), LANES) for config in (placed, apart))
    assert softmax == pytest.approx(tracked(placed, Plan(1)), rel=0.02)
    wider = plan_memory(placed, small_config(**SHAPE, n_positions=1032), Plan(1), LANES)
    positions, places = 1000 * 24 * 4, 1000 * 2 * SHAPE["n_layer"] * 24 * 4
    assert wider - softmax == 4 * positions + places, "weights, gradients, two moments, and what places add"
    assert gate < wider


def test_views_are_free():
    with MemoryTracker() as tracker:
        whole = torch.zeros(10, 10)
        views = [whole[2:], whole.T, whole.view(4, 25), whole.detach()]
    assert len(views) == 4
    assert tracker.live == tracker.peak == 400


def test_freed_tensors_are_given_back_and_the_peak_is_remembered():
    with MemoryTracker() as tracker:
        first = torch.zeros(100)
        view = first[1:]
        del first
        assert tracker.live == 400  # the view still needs the storage
        del view
        assert tracker.live == 0
        second = torch.zeros(50)
    assert (tracker.live, tracker.peak, second.numel()) == (200, 400, 50)


def test_what_a_graph_holds_is_counted_until_the_graph_is_gone():
    weight = torch.ones(100, requires_grad=True)
    with MemoryTracker() as tracker:
        tracker.hold([weight, weight])
        assert tracker.live == 400  # once
        result = weight.exp().sin().sum()
        assert tracker.live == 400 + 400 + 4  # exp's result, which sin needs; sin's own is gone
        result.backward()
        del result
        assert tracker.live == 400 + 400  # the weight and its gradient


def test_a_storage_that_grows_counts_at_its_size():
    with MemoryTracker() as tracker:
        tensor = torch.zeros(10)
        tensor.resize_(100)
    assert tracker.live == 400


def test_the_trials_dropout_counts_and_not_the_bases() -> None:
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1)
    with_dropout, without = small_config(n_positions=64, **rates), small_config(n_positions=64)
    trial = {"window": 64, "bptt_windows": 2, "batch": 2, "width": 8, "depth": 1, "precision": "float32"}
    plan = Plan(kept_windows=2)
    assert plan_memory(TrialConfig(**trial, dropout=0.0), with_dropout, plan, 2) == plan_memory(
        TrialConfig(**trial), without, plan, 2
    )
    assert plan_memory(TrialConfig(**trial, dropout=0.1), without, plan, 2) == plan_memory(
        TrialConfig(**trial), with_dropout, plan, 2
    )
