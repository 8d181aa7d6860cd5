"""What a step costs where the base is frozen: the recurrence alone learns, or LoRA too."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import Plan
from recur_tune.bptt.step import train_step
from recur_tune.bptt.trained import trained_of
from recur_tune.common.shape import shape_of
from recur_tune.config.base_shape import base_settings
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.communication import exchanged_bytes
from recur_tune.cost.counted_flops import frozen_training_flops, simulated_batch, trained_parameters
from recur_tune.cost.descriptors import COSTS
from recur_tune.cost.estimate import estimate
from recur_tune.cost.priced_trial import PricedTrial
from recur_tune.cost.training_memory import plan_memory, resolve_plan, track_step
from recur_tune.models.pretrained import fresh_model, recurrent_config
from recur_tune.models.trained import lay_frozen_together
from tests.models import full_batch
from tests.models.bodies import BODIES

pytestmark = pytest.mark.slow  # real and simulated steps side by side

FIELDS = {"l_ins": 2, "width": 8, "depth": 1, "window": 8, "batch": 2}


def base_of(name: str):
    return CONFIG_MAPPING[BODIES[name]["model_type"]](**{k: v for k, v in BODIES[name].items() if k != "model_type"})


@pytest.mark.parametrize(("windows", "kept"), [(2, 1), (6, 1), (7, 3), (6, 6)])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_frozen_bodys_flops_are_those_of_a_real_step(name, windows, kept):
    trainable = "lora" if kept == 1 else "recurrence"
    config = TrialConfig(**FIELDS, bptt_windows=windows, trainable=trainable, lora_rank=3, lora_targets="mlp")
    model = fresh_model(recurrent_config(base_of(name), config.recurrence_spec, None))
    trained_of(config, torch.device("cpu")).apply(model)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        Chain(model, Plan(kept)).differentiate(simulated_batch(windows, 1, 8, model=model))
    expected = counter.get_total_flops() / config.windowing.span(windows)
    assert frozen_training_flops(config, base_of(name), kept) == pytest.approx(expected)


@pytest.mark.parametrize("recurrence", ["none", "cache", "gated_delta"])
@pytest.mark.parametrize("windows", [2, 3, 4])
def test_flops_are_counted_as_torch_counts_them(recurrence, windows):
    """To the last one: what the module of a product is called, which our counter does not follow, changes no sum."""
    config = TrialConfig(
        recurrence=recurrence, cache_rows=4, window=8, batch=2, bptt_windows=windows, trainable="lora", lora_rank=3
    )
    model = fresh_model(recurrent_config(base_of("llama"), config.recurrence_spec, None))
    trained_of(config, torch.device("cpu")).apply(model)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        Chain(model, Plan(1)).differentiate(simulated_batch(windows, 1, 8, model=model))
    expected = counter.get_total_flops() / config.windowing.span(windows)
    assert frozen_training_flops(config, base_of("llama"), 1) == expected


@pytest.mark.parametrize(("trainable", "most"), [("lora", 24), ("all", 40)])
def test_a_base_of_a_billion_weights_fits_a_card(trainable, most):
    config = TrialConfig(
        base="Qwen/Qwen2.5-1.5B", recurrence="none", trainable=trainable, window=300, batch=16, bptt_windows=10,
        precision="bfloat16",
    )  # fmt: skip
    base = base_settings(config.base, None)
    assert plan_memory(config, base, resolve_plan(config, base), config.batch) < most * 2**30


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


def frozen_model(config: TrialConfig, name: str):
    model = fresh_model(recurrent_config(base_of(name), config.recurrence_spec, None)).train()
    trained_of(config, torch.device("cpu")).apply(model)
    lay_frozen_together(model)
    return model


FROZEN = (
    {"trainable": "lora"},
    {"trainable": "lora", "lora_rank": 2, "lora_targets": "attention", "lora_dropout": 0.1, "recurrence": "none"},
    {"trainable": "recurrence"},
    {"trainable": "lora", "base_bits": 4},
    {"trainable": "recurrence", "base_bits": 8},
)


# What is frozen with both bodies and in both precisions; which precision goes with which body alternates.
@pytest.mark.parametrize(
    ("name", "fields", "precision"),
    [
        (name, fields, ("float32", "bfloat16")[(at + place) % 2])
        for at, fields in enumerate(FROZEN)
        for place, name in enumerate(("gpt2", "qwen2"))
    ],
    ids=str,
)
def test_the_predicted_peak_is_that_of_a_real_step(name, fields, precision):
    config = TrialConfig(**FIELDS | {"window": 16}, bptt_windows=3, precision=precision, **fields)
    model, batch = frozen_model(config, name), full_batch(3, 2, 16)
    chain, optimizer = Chain(model, Plan(2)), make_optimizer(model, 1e-3, 0.0)
    train_step(chain, optimizer, batch, 1.0, precision)
    real = track_step(MemoryTracker(), chain, optimizer, batch, precision)
    assert plan_memory(config, base_of(name), Plan(2), 2) == real


@pytest.mark.parametrize("targets", ["attention", "mlp", "all"])
@pytest.mark.parametrize("name", ["gpt2", "mistral", "qwen3"])
def test_what_learns_is_counted_without_a_model(name, targets):
    config = TrialConfig(**FIELDS, bptt_windows=2, trainable="lora", lora_rank=3, lora_targets=targets)
    learns = sum(one.numel() for one in frozen_model(config, name).parameters() if one.requires_grad)
    assert trained_parameters(config, shape := shape_of(base_of(name).to_dict())) == learns
    assert exchanged_bytes(config, shape, 2) == 4 * learns
    whole = config.model_copy(update={"trainable": "all"})
    assert [COSTS[one].predict(PricedTrial(config, base_of(name), shape)) for one in MERGED] == [
        COSTS[one].predict(PricedTrial(whole, base_of(name), shape)) for one in MERGED
    ]


MERGED = ("flops_per_token", "inference_memory", "parameters")  # of a model that is read, LoRA being merged


def llama_of_blocks(**fields):
    """A trial on a body whose blocks have most of its weights, and that body."""
    config = TrialConfig(
        window=4,
        batch=1,
        bptt_windows=1,
        recurrence="none",
        trainable="lora",
        lora_rank=1,
        precision="bfloat16",
        **fields,
    )
    base = CONFIG_MAPPING["llama"](
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, intermediate_size=512,
        vocab_size=256, max_position_embeddings=16, tie_word_embeddings=True,
    )  # fmt: skip
    return config, base


def test_a_frozen_base_in_bfloat16_is_held_once():
    """A step makes no second copy of matrices, and keeps no gradient and no moments of them."""
    config, base = llama_of_blocks()
    assert plan_memory(config, base, Plan(1), 1) < 2.6 * shape_of(base.to_dict()).parameters


@pytest.mark.parametrize("bits", [8, 4])
def test_of_a_quantised_base_one_matrix_at_a_time_is_whole(bits):
    """Codes and a scale for 64 weights stay; beside the largest product's matrix nothing that is dequantised does."""
    (config, base), (whole, _) = llama_of_blocks(base_bits=bits), llama_of_blocks()
    of_block = 4 * 256 * 256 + 3 * 256 * 512
    spared = 4 * of_block * (2 - bits / 8 - 4 / 64)
    made = 2 * 2 * 256 * 512 + (
        4 * 256 * 512 + 2 * 256 * 512 if bits == 4 else 0
    )  # values; levels and bytes as numbers
    less = plan_memory(whole, base, Plan(1), 1) - plan_memory(config, base, Plan(1), 1)
    assert spared - made - 0.02 * spared < less < spared
