"""Two ways to the next-token loss, and the textbook's."""

from __future__ import annotations

import pytest
import torch

from recur_tune.corpus.windows import NOT_SCORED
from recur_tune.model import loss
from recur_tune.model.loss import summed_loss, summed_loss_with_gradients


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
        for row, wanted in zip(top @ weight.T, target.tolist(), strict=True):
            if wanted != NOT_SCORED:
                total = total - (row[wanted].exp() / row.exp().sum()).log()
    return total


def test_the_summed_loss_is_the_textbooks():
    (top,), weight, (target,) = some_windows(10)
    torch.testing.assert_close(summed_loss(top, weight, target), textbook([top], weight, [target]))


@pytest.mark.parametrize("rows", [2048, 3, 1])
@pytest.mark.parametrize("lengths", [(10,), (7, 3, 8)], ids=str)
@pytest.mark.parametrize("factor", [1.0, -0.37])
def test_gradients_made_in_the_forward_pass_are_the_textbooks(monkeypatch, rows, lengths, factor):
    monkeypatch.setattr(loss, "_ROWS", rows)
    tops, weight, targets = some_windows(*lengths)
    expected, eager = textbook(tops, weight, targets), summed_loss_with_gradients(tops, weight, targets)
    torch.testing.assert_close(eager, expected, rtol=1e-10, atol=0)
    expected_gradients = torch.autograd.grad(expected * factor, [weight, *tops])
    gradients = torch.autograd.grad(eager * factor, [weight, *tops])
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-10, atol=1e-12)


def test_both_ways_agree_in_gradients_with_each_other():
    tops, weight, targets = some_windows(9, 9)
    kept = sum(summed_loss(top, weight, target) for top, target in zip(tops, targets, strict=True))
    gradients = torch.autograd.grad(kept, [weight, *tops])
    eager = torch.autograd.grad(summed_loss_with_gradients(tops, weight, targets), [weight, *tops])
    torch.testing.assert_close(eager, gradients, rtol=1e-10, atol=1e-12)


def test_what_is_not_scored_costs_nothing_and_pulls_at_nothing():
    tops, weight, targets = some_windows(5)
    targets[0][:] = NOT_SCORED
    for total in (summed_loss(tops[0], weight, targets[0]), summed_loss_with_gradients(tops, weight, targets)):
        assert total.item() == 0
        assert all(gradient.abs().max() == 0 for gradient in torch.autograd.grad(total, [weight, *tops]))


def test_under_autocast_both_sum_in_single_precision_and_agree():
    tops, weight, targets = some_windows(40, 40, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        kept = sum(summed_loss(top, weight, target) for top, target in zip(tops, targets, strict=True))
        eager = summed_loss_with_gradients(tops, weight, targets)
    assert kept.dtype == eager.dtype == torch.float32
    torch.testing.assert_close(eager, kept, rtol=1e-5, atol=0)
    torch.testing.assert_close(eager, textbook(tops, weight, targets), rtol=1e-2, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(eager, [weight, *tops]), torch.autograd.grad(kept, [weight, *tops]), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02 * float(theirs.abs().max()))
