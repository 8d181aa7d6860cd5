"""The next-token loss and its gradients, against the textbook's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.common.windowing import NOT_SCORED
from recur_tune.models.loss import Head, padded
from recur_tune.ops.reference import cross_entropy


def some_windows(*lengths: int, dtype: torch.dtype = torch.float64):
    """Outputs and targets of windows, every third of them unscored, and a vocabulary of 11."""
    tops = [torch.randn(length, 6, dtype=dtype, requires_grad=True) for length in lengths]
    targets = [torch.randint(11, (length,)) for length in lengths]
    for target in targets:
        target[1::3] = NOT_SCORED
    return tops, torch.randn(11, 6, dtype=dtype, requires_grad=True), targets


def textbook(tops, weight, targets) -> torch.Tensor:
    total = torch.zeros((), dtype=weight.dtype)
    for top, target in zip(tops, targets, strict=True):
        [rows] = (target != NOT_SCORED).nonzero(as_tuple=True)
        scores = (top @ weight.T)[rows].exp()
        total = total - (scores[torch.arange(len(rows)), target[rows]] / scores.sum(-1)).log().sum()
    return total


def scored(
    tops: Sequence[torch.Tensor], weight: torch.Tensor, targets: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Our sum, and the gradients of the weight and of every window's output."""
    head = Head(weight)
    results = [head.score(top, target) for top, target in zip(tops, targets, strict=True)]
    return torch.stack([one for one, _ in results]).sum(), [head.gradient, *(gradient for _, gradient in results)]


@pytest.mark.parametrize("lengths", [(1,), (10,), (7, 3, 8), (4097,), (9001, 4)], ids=str)
def test_loss_and_gradients_are_the_textbooks(lengths):
    tops, weight, targets = some_windows(*lengths)
    expected = textbook(tops, weight, targets)
    total, gradients = scored(tops, weight, targets)
    torch.testing.assert_close(total, expected.detach(), rtol=1e-10, atol=0)
    by_hand = torch.autograd.grad(expected, [weight, *tops])
    torch.testing.assert_close(gradients, list(by_hand), rtol=1e-10, atol=1e-10)


def test_the_logits_of_a_long_window_are_never_whole():
    def peak(rows: int) -> int:
        with MemoryTracker() as tracker:
            Head(torch.zeros(512, 6)).score(torch.zeros(rows, 6), torch.zeros(rows, dtype=torch.long))
        return tracker.peak

    logits = 8192 * 512 * 4
    assert peak(16384) - peak(8192) < 0.1 * logits


def test_what_is_not_scored_costs_nothing_and_pulls_at_nothing():
    tops, weight, targets = some_windows(5)
    targets[0][:] = NOT_SCORED
    total, gradients = scored(tops, weight, targets)
    assert total.item() == 0
    assert all(gradient.abs().max() == 0 for gradient in gradients)


def test_padding_is_invisible_even_where_logits_are_far_below_it():
    """The columns beyond the vocabulary hold zeros; with real logits at -50 they would win every softmax."""
    logits = torch.full((3, padded(11)), 0.0, dtype=torch.float64)
    logits[:, :11] = torch.randn(3, 11, dtype=torch.float64) - 50
    real, target = logits[:, :11].clone().requires_grad_(), torch.tensor([4, NOT_SCORED, 0])
    expected = torch.nn.functional.cross_entropy(real, target, ignore_index=NOT_SCORED, reduction="sum")
    total = cross_entropy(logits, target, 11)  # which leaves the gradient in their place
    torch.testing.assert_close(total, expected.detach())
    torch.testing.assert_close(logits[:, :11], torch.autograd.grad(expected, real)[0])
    assert logits[:, 11:].abs().max() == 0


@pytest.mark.parametrize(("vocabulary", "columns"), [(1, 128), (128, 128), (129, 256), (50257, 50304)])
def test_columns_are_whole_blocks(vocabulary, columns):
    assert padded(vocabulary) == columns


def test_under_autocast_sums_are_in_single_precision():
    tops, weight, targets = some_windows(40, 40, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        total, gradients = scored(tops, weight, targets)
    assert total.dtype == torch.float32 and {one.dtype for one in gradients} == {torch.float32}
    expected = textbook(tops, weight, targets)
    torch.testing.assert_close(total, expected.detach(), rtol=1e-2, atol=0)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, [weight, *tops]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02 * float(theirs.abs().max()))


def test_a_target_of_probability_zero_in_float32_has_a_loss():
    logits = torch.tensor([[0.0, 200.0, 0.0], [-300.0, 0.0, 0.0]])
    loss = cross_entropy(logits, torch.tensor([0, 0]), 3)
    torch.testing.assert_close(loss, torch.tensor(200.0 + 300.0 + math.log(2)))
    torch.testing.assert_close(logits, torch.tensor([[-1.0, 1.0, 0.0], [-1.0, 0.5, 0.5]]))
