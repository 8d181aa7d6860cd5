"""A frozen base in 8 or 4 bits: bounds of its errors, gradients beside it, and what is saved of it."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.plan import Plan
from recur_tune.common.lora import LoraSpec
from recur_tune.models import WindowedDecoder
from recur_tune.models.trained import Trained, lay_frozen_together, merged
from recur_tune.ops.quantised import BLOCK, QuantisedWeight, dequantised
from recur_tune.recurrences.cache.spec import CacheSpec
from tests.models import full_batch, some_tokens
from tests.models.bodies import body
from tests.models.mechanisms import SPECS

LORA = LoraSpec(rank=3, alpha=5.0)
# Half of the largest gap between the sixteen levels, which is that between -1 and the next.
LARGEST_ERROR = {8: 1 / 254, 4: (1 - 0.6961928009986877) / 2}


def blocks_of(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return weight.flatten().split(BLOCK)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 9), columns=st.integers(1, 90), bits=st.sampled_from([8, 4]),
    size=st.sampled_from([1e-6, 1, 1e4]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_a_weight_is_off_by_at_most_half_a_gap_of_its_block(rows, columns, bits, size, seed) -> None:
    weight = size * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    held = QuantisedWeight(weight, bits)
    found = dequantised([held])
    assert found.shape == weight.shape and held.codes.nbytes == len(blocks_of(weight)) * BLOCK * bits // 8
    for block, own in zip(blocks_of(weight), blocks_of(found), strict=True):
        assert (block - own).abs().max() <= block.abs().max() * LARGEST_ERROR[bits] * (1 + 1e-9)


@pytest.mark.parametrize("bits", [8, 4])
def test_values_are_quantised_to_themselves_and_the_largest_of_a_block_is_exact(bits: int) -> None:
    weight = torch.randn(7, 50)
    weight[2] = 0  # and a whole block of zeros
    weight.view(-1)[BLOCK : 2 * BLOCK] = 0
    found = dequantised([QuantisedWeight(weight, bits)])
    assert torch.equal(dequantised([QuantisedWeight(found, bits)]), found)
    assert not found[2].any() and found.isfinite().all()
    for block, own in zip(blocks_of(weight), blocks_of(found), strict=True):
        torch.testing.assert_close(own.abs().max(), block.abs().max())
        assert torch.equal(own.sign()[block == block.abs().max()], block.sign()[block == block.abs().max()])


def test_of_normal_weights_nf4_uses_every_level_about_alike() -> None:
    codes = QuantisedWeight(torch.randn(1000, BLOCK), 4).codes
    counts = torch.cat([codes >> 4, codes & 15]).bincount(minlength=16)
    assert counts.min() > 0.03 * 1000 * BLOCK / 2


def frozen(name: str, bits: int, spec: object, trainable: str = "lora", bfloat16: bool = False) -> WindowedDecoder:
    """A body in double precision with these bits, whose LoRA matrices are all random."""
    torch.manual_seed(5)
    model = body(name, spec)
    lora = LORA if trainable == "lora" else None
    Trained(trainable, lora, bfloat16, bits).apply(model)
    lay_frozen_together(model)
    with torch.no_grad():
        for layer in model.body.lora:
            layer.up.normal_(std=0.3)
    return model


def with_dequantised_weights(model: WindowedDecoder) -> WindowedDecoder:
    """The same model, whose frozen weights are whole."""
    other = copy.deepcopy(model)
    for projection in other.body.projections:
        for module in projection.modules:
            module.weight = torch.nn.Parameter(dequantised([module.weight]), requires_grad=False)
    return other


def gradients_of(model: WindowedDecoder, batch, kept: int) -> dict[str, torch.Tensor]:
    chain = Chain(model, Plan(kept))
    found = chain.differentiate(batch)
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[one]: total.clone() for one, total in zip(chain.trained, found.gradients, strict=True)}


@pytest.mark.parametrize(
    ("name", "bits", "spec", "trainable"),
    [
        ("llama", 4, CacheSpec(cache_rows=7), "lora"),
        ("gpt2", 4, CacheSpec(cache_rows=7), "recurrence"),
        ("gpt2", 8, SPECS["pooled, all layers"], "lora"),
        ("llama, tied, with biases", 8, None, "lora"),
    ],
    ids=str,
)
def test_gradients_are_those_beside_the_dequantised_weights(name: str, bits: int, spec: object, trainable: str) -> None:
    """Whose gradients are autograd's on a model that peft wrapped (test_lora.py)."""
    model, batch = frozen(name, bits, spec, trainable), full_batch(3, 2, 9)
    ours, theirs = (gradients_of(one, batch, 2) for one in (model, with_dequantised_weights(model)))
    assert ours.keys() == theirs.keys() and any(total.any() for total in ours.values())
    for one, total in ours.items():
        torch.testing.assert_close(total, theirs[one], rtol=1e-10, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize(("name", "bits"), [("gpt2", 8), ("qwen3", 4)])
def test_what_is_saved_is_what_was_trained_on(name: str, bits: int) -> None:
    model, tokens = frozen(name, bits, CacheSpec(cache_rows=4)), some_tokens(2, 14)
    model.config.window = 7
    whole = merged(model)
    assert not any(isinstance(one, QuantisedWeight) for one in whole.modules())
    torch.testing.assert_close(whole(tokens).logits, model(tokens).logits, rtol=1e-9, atol=1e-9)
    torch.manual_seed(5)
    assert (body(name, CacheSpec(cache_rows=4))(tokens).logits - whole(tokens).logits).abs().max() > 0.01


@pytest.mark.parametrize("bits", [8, 4])
def test_where_products_are_in_bfloat16_so_are_the_values_that_are_saved(bits: int) -> None:
    model = frozen("llama", bits, SPECS["pooled, all layers"], "recurrence", bfloat16=True)
    with torch.autocast("cpu", torch.bfloat16):
        read = gradients_of(model, full_batch(3, 2, 6), 2)
    whole = merged(model)
    for own, other in zip(whole.body.projections, model.body.projections, strict=True):
        for saved, held in zip(own.weights, other.quantised, strict=True):
            assert saved.dtype == torch.float32 and torch.equal(saved.bfloat16().float(), saved)
            assert torch.equal(saved, dequantised([held]).float())
    assert all(total.isfinite().all() for total in read.values())


def test_nothing_but_the_blocks_matrices_is_quantised() -> None:
    model = frozen("llama", 4, None)
    names = {name for name, one in model.named_modules() if isinstance(one, QuantisedWeight)}
    assert len(names) == 7 * 3 and all(".layers." in name and name.endswith("_proj.weight") for name in names)
    assert all(one.dtype in (torch.uint8, torch.float64) for one in model.buffers())


def test_matrices_are_quantised_one_after_the_other() -> None:
    """The whole weights and their codes are never there together."""
    model = body("llama", hidden_size=48, num_hidden_layers=8).float()
    largest = max(weight.nbytes for weight in model.parameters())
    with MemoryTracker() as tracker:
        tracker.hold(model.parameters())
        before = tracker.live
        Trained("recurrence", None, True, 8).apply(model)
    assert tracker.peak < before + 6 * largest and tracker.live < before / 2 and before > 20 * largest
