"""Norms, means, activations and losses: the kernels of a block's passes, at sizes that fill no block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from recur_tune.common.windowing import NOT_SCORED
from recur_tune.ops.triton import means as mean_kernels
from recur_tune.ops.triton import pointwise as kernels
from tests.kernels import KINDS, Numbers, assert_as_passes, launches

_LANES, _POSITIONS, _SIZE = 2, 7, 19


def _norm(kind: type[nn.Module], numbers: Numbers) -> nn.Module:
    norm = kind(_SIZE).requires_grad_(False).to(numbers.device, numbers.single)
    for vector in norm.parameters():
        vector.copy_(numbers.summed(_SIZE))
    return norm


@pytest.mark.parametrize(
    ("family", "means", "kind"),
    [
        (nn.LayerNorm, 1, torch.float32),
        (nn.LayerNorm, 3, torch.bfloat16),
        (LlamaRMSNorm, 1, torch.bfloat16),
        (LlamaRMSNorm, 3, torch.float32),
    ],
)
@launches("_add_norm", "_add_norm_backward")
def test_a_norm_of_a_sum(family, means, kind, device, monkeypatch):
    monkeypatch.setattr(kernels, "_PROGRAMS", 3)  # so that one has several blocks of rows

    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        norm, shape = _norm(family, numbers), (_LANES, _POSITIONS, _SIZE)
        x, added, grad_normed = numbers.summed(*shape), numbers.rounded(*shape), numbers.rounded(*shape)
        grad_x, grad_means = numbers.summed(*shape), numbers.summed(_LANES, means, _SIZE)
        total, normed, made_means, moments = passes.add_norm(x, added, norm, numbers.kind, means)
        totals = tuple(numbers.summed(_SIZE) for _ in range(3))
        gradients = passes.add_norm_backward(
            grad_normed, grad_x, grad_means, total, moments, norm, numbers.kind, numbers.kind, totals
        )
        return [total, normed, made_means, moments.flatten(), *gradients, *totals]

    assert_as_passes(run, kind, device)


@pytest.mark.parametrize("family", [nn.LayerNorm, LlamaRMSNorm])
@launches("_add_norm", "_add_norm_backward")
def test_a_norm_alone(family, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        norm, x = _norm(family, numbers), numbers.summed(_LANES, _POSITIONS, _SIZE)
        grad_normed = numbers.rounded(_LANES, _POSITIONS, _SIZE)
        same, normed, none, moments = passes.add_norm(x, None, norm, numbers.kind, 0)
        gradient, low, no_norm = passes.add_norm_backward(
            grad_normed, None, None, same, moments, norm, numbers.kind, None, (None, None, None)
        )
        assert none is None
        assert no_norm is None
        return [same, normed, gradient, low]

    assert_as_passes(run, torch.float32, device)


@launches("_add_norm", "_sum_parts")
def test_a_mean_over_many_blocks_of_positions(device, monkeypatch):
    monkeypatch.setattr(kernels, "_PARTS", 2)
    monkeypatch.setattr(kernels, "_COLUMNS", 16)

    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        x = numbers.summed(_LANES, 18, _SIZE)  # five blocks of positions
        return [passes.add_norm(x, None, _norm(nn.LayerNorm, numbers), numbers.kind, 1)[2]]

    assert_as_passes(run, torch.float32, device)


@KINDS
@pytest.mark.parametrize("positions", [1, 11])
@launches("_stretch_means", "_spread")
def test_means_over_stretches(positions, kind, device, monkeypatch):
    monkeypatch.setattr(mean_kernels, "_PARTS", 4)
    monkeypatch.setattr(mean_kernels, "_COLUMNS", 16)

    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        means = passes.stretch_means(numbers.summed(_LANES, positions, _SIZE), 3)  # of one position two are empty
        return [means, passes.stretch_means_backward(numbers.rounded(_LANES, 3, _SIZE), positions)]

    assert_as_passes(run, kind, device)


@KINDS
@launches("_add_columns")
def test_a_sum_over_rows(kind, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        total = numbers.summed(67)
        passes.add_columns(numbers.rounded(3, 11, 67), total)
        return [total]

    assert_as_passes(run, kind, device)


@KINDS
@launches("_gelu", "_gelu_backward")
def test_gelu(kind, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        hidden, grad_active, total = numbers.rounded(3, 11, 67), numbers.rounded(3, 11, 67), numbers.summed(67)
        made = passes.gelu_backward(hidden, grad_active, total)
        return [passes.gelu(hidden), *made, total]

    assert_as_passes(run, kind, device)


@KINDS
@launches("_swiglu", "_swiglu_backward")
def test_swiglu(kind, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        hidden, grad_active, total = numbers.rounded(3, 11, 134), numbers.rounded(3, 11, 67), numbers.summed(134)
        made = passes.swiglu_backward(hidden, grad_active, total)
        return [passes.swiglu(hidden), *made, total]

    assert_as_passes(run, kind, device)


@KINDS
@launches("_cross_entropy")
def test_a_loss_and_its_gradient(kind, device, monkeypatch):
    monkeypatch.setattr(kernels, "_LOGITS", 32)

    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        logits, target = 3 * numbers.rounded(5, 72), numbers.whole(0, 69, NOT_SCORED, 33, 33)
        return [passes.cross_entropy(logits, target, 70), logits]  # behind 70 columns two of padding

    assert_as_passes(run, kind, device)
