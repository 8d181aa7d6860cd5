"""What an encoder costs: torch's own count of a real step, and the memory of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import Plan
from recur_tune.bptt.step import train_step
from recur_tune.common.shape import shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import simulated_batch
from recur_tune.cost.flops import flops_per_token, training_flops_per_token
from recur_tune.cost.inference_memory import inference_memory
from recur_tune.cost.training_memory import plan_memory, track_step
from recur_tune.data.batches import WindowBatch
from recur_tune.models.pretrained import base_config
from tests.tasks import ENCODERS, small_encoder

WINDOWS, LANES, SIZE, ASKED = 3, 2, 16, 4
VARIANTS: list[dict[str, Any]] = [
    {"recurrence": "none"}, {}, {"l_ins": "all", "embeddings": 2},
    {"recurrence": "tokens", "state_tokens": 3, "ring": 2},
]  # fmt: skip


def config_of(**fields: Any) -> TrialConfig:
    usual = {
        "corpus": "facts", "window": SIZE, "bptt_windows": WINDOWS, "batch": LANES, "width": 20, "depth": 2,
        "question_tokens": ASKED, "precision": "float32",
    }  # fmt: skip
    return TrialConfig(**usual | fields)


def full_batch(windows: int = WINDOWS) -> WindowBatch:
    return simulated_batch(windows, LANES, SIZE, model=small_encoder())


def small_base(family: str = "roberta") -> Any:
    return small_encoder(family).config


# A square in which every family, every variant and every plan meet each other once or more.
@pytest.mark.parametrize(
    ("family", "variant", "plan"),
    [
        (family, variant, Plan(1 + (row + column) % WINDOWS))
        for row, family in enumerate(ENCODERS)
        for column, variant in enumerate(VARIANTS)
    ],
    ids=str,
)
def test_training_flops_are_what_torch_counts(family: str, variant: dict[str, Any], plan: Plan) -> None:
    config = config_of(**variant)
    model = small_encoder(family, config.recurrence_spec)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        Chain(model, plan).differentiate(full_batch())
    text = SIZE - ASKED - 3  # of every window, which is all that is scored
    counted = counter.get_total_flops() / (LANES * WINDOWS * text)
    assert training_flops_per_token(config, model.config.shape, plan) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_flops_per_token_are_a_forward_pass_of_the_blocks(variant: dict[str, Any]) -> None:
    """Of a window in the midst of a question; where rows sum it up torch also counts the looks that a mask hides."""
    config = config_of(**variant, overlap=2)
    model = small_encoder("roberta", config.recurrence_spec)
    tokens = torch.full((1, SIZE), 5)
    with torch.no_grad():
        state = model.read(tokens).state
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.read(tokens, state)
    hidden = 0
    if config.recurrence == "tokens":
        shape, rows = model.config.shape, 3
        hidden = shape.layers * 4 * shape.hidden * (2 * rows + SIZE) * rows
    counted = (counter.get_total_flops() - hidden) / (SIZE - ASKED - 3 - 2)
    assert flops_per_token(config, model.config.shape) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize("plan", [Plan(1), Plan(3)], ids=str)
@pytest.mark.parametrize("variant", [{"recurrence": "none"}, {}, {"dropout": 0.1}], ids=str)
def test_the_prediction_of_memory_is_the_peak_of_a_real_step(variant: dict[str, Any], plan: Plan) -> None:
    config = config_of(**variant)
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), config.dropout or 0.0)
    model = small_encoder("roberta", config.recurrence_spec, **rates).train()
    optimizer, chain, batch = make_optimizer(model, 1e-3, 0.0), Chain(model, plan), full_batch()
    train_step(chain, optimizer, batch, clip_norm=1.0, precision="float32")
    real = track_step(MemoryTracker(), chain, optimizer, batch, "float32")
    assert plan_memory(config, small_base(), plan, LANES) == pytest.approx(real, rel=0.05)


@pytest.mark.slow
def test_the_extrapolated_peak_of_a_long_chain_is_a_real_step_s() -> None:
    config, plan = config_of(bptt_windows=7), Plan(2)
    model = small_encoder("roberta", config.recurrence_spec).train()
    optimizer, chain, batch = make_optimizer(model, 1e-3, 0.0), Chain(model, plan), full_batch(7)
    train_step(chain, optimizer, batch, clip_norm=1.0, precision="float32")
    real = track_step(MemoryTracker(), chain, optimizer, batch, "float32")
    assert plan_memory(config, small_base(), plan, LANES) == pytest.approx(real, rel=0.02)


def test_a_question_makes_the_tokens_of_a_text_dearer() -> None:
    shape = small_base().shape
    short, long = (flops_per_token(config_of(question_tokens=tokens), shape) for tokens in (3, 8))
    assert long / short == pytest.approx((SIZE - 6) / (SIZE - 11))


def test_an_encoder_keeps_nothing_of_a_window_but_the_state() -> None:
    shape = small_base().shape
    assert inference_memory(config_of(recurrence="none"), shape, 0) == 0
    assert inference_memory(config_of(), shape, 24) == 24 * 4


def test_the_papers_encoder_is_priced_without_the_hub() -> None:
    roberta = base_config("roberta-base")
    config = TrialConfig(
        base="roberta-base", corpus="hotpotqa", window=512, bptt_windows=4, batch=1, width=768, depth=2
    )
    shape = shape_of(roberta.to_dict())
    assert shape.context == 512 and shape.parameters == 124_055_040 + 5 * 769  # RoBERTa without its pooler, and heads
    forward = 512 * 12 * (2 * (4 * 768 * 768 + 2 * 768 * 3072) + 4 * 768 * 512)
    assert flops_per_token(config, shape) == pytest.approx(forward / (512 - 48 - 3), rel=0.005)
