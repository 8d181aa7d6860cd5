"""Backpropagation through time: every plan gives the same gradients, and the paper's plan needs the paper's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.plan import Execution, Plan, chosen_execution, fixed_plan
from recur_tune.common.windowing import NOT_SCORED, Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.data.batches import WindowBatch
from recur_tune.models import RecurrentGPT2
from recur_tune.models.loss import NextTokenScorer
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.conftest import small_model
from tests.models import chain_batch, full_batch

WINDOWS = 4
POOLED = PooledSpec(width=20, depth=1)
PLANS = [Plan(kept) for kept in range(1, WINDOWS)]
MODELS = {
    "none": None, "pooled": POOLED, "all layers": PooledSpec(l_ins="all", embeddings=2, pooling="attention"),
    "recent": PooledSpec(l_ins="all", embeddings=3, pooling="recent", width=20, depth=1, skip=True),
}  # fmt: skip
# Documents begin at different windows of three batch rows, some shorter than a window; the last row ends early.
MIXED = chain_batch(Windowing(6, 2), [[14, 3], [6, 10, 2], [14]], WINDOWS)


def loss_and_gradients(model: RecurrentGPT2, plan: Plan, batch: WindowBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    torch.manual_seed(5)
    found = Chain(model, plan).differentiate(batch)
    return found.loss, found.gradients


def assert_same(ours: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float) -> None:
    """Equal to within a fraction of each gradient's own size."""
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))


def test_the_mixed_batch_mixes_what_it_should():
    assert MIXED.starts == ("all", "some", "none", "all")
    assert MIXED.fresh_WB.T.int().tolist() == [[1, 0, 0, 1], [1, 1, 0, 1], [1, 0, 0, 1]]
    assert MIXED.scored == 14 + 3 + 6 + 10 + 2 + 14


@pytest.mark.parametrize(
    ("dtype", "tolerance", "recurrence", "dropout"),
    [
        (torch.float32, 1e-5, "pooled", 0.0),
        (torch.float32, 1e-5, "pooled", 0.3),
        (torch.float64, 1e-10, "pooled", 0.0),
        (torch.float64, 1e-10, "none", 0.3),
        (torch.float64, 1e-10, "all layers", 0.3),
    ],
    ids=str,
)
def test_every_plan_gives_the_loss_and_gradients_of_keeping_everything(dtype, tolerance, recurrence, dropout):
    rates = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], dropout)
    model = small_model(MODELS[recurrence], n_layer=2, **rates).to(dtype).train()
    expected, expected_gradients = loss_and_gradients(model, Plan(WINDOWS), MIXED)
    if dropout:
        undisturbed, _ = loss_and_gradients(model.eval(), Plan(WINDOWS), MIXED)
        assert abs(undisturbed - expected) > 0.1
    for plan in PLANS:
        loss, gradients = loss_and_gradients(model.train(), plan, MIXED)
        torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
        assert_same(gradients, expected_gradients, tolerance)


@pytest.mark.parametrize("recurrence", MODELS.values(), ids=MODELS)
def test_a_batch_is_the_sum_of_its_documents_read_by_hand(recurrence):
    model = small_model(recurrence).double()
    loss, gradients = loss_and_gradients(model, Plan(2), MIXED)
    by_hand = torch.zeros((), dtype=torch.float64)
    for row in range(3):
        state = None
        for window in range(WINDOWS):
            if MIXED.fresh_WB[window, row]:
                state = None
            reading = model.read(MIXED.inputs_WBT[window, row : row + 1], state)
            state = reading.state
            log_p_TV = model.logits(reading.top_BTK[0]).log_softmax(-1)
            for position, target in enumerate(MIXED.targets_WBT[window, row].tolist()):
                if target != NOT_SCORED:
                    by_hand = by_hand - log_p_TV[position, target]
    torch.testing.assert_close(loss, by_hand.detach(), rtol=1e-10, atol=0)
    assert_same(gradients, list(torch.autograd.grad(by_hand, list(model.parameters()))), 1e-10)


@pytest.mark.parametrize("plan", [Plan(1), Plan(3)], ids=str)
@pytest.mark.parametrize("recurrence", [None, POOLED], ids=["none", "pooled"])
def test_gradients_reach_the_first_window_through_the_state_alone(recurrence, plan):
    gradient = gradient_of_a_token_in_the_first_window(recurrence, plan, Windowing(8), [24])
    assert (gradient.abs().max() > 1e-6) == (recurrence is not None)


def test_no_gradient_crosses_from_one_document_into_another():
    gradient = gradient_of_a_token_in_the_first_window(POOLED, Plan(1), Windowing(8), [8, 16])
    assert gradient.abs().max() == 0


def gradient_of_a_token_in_the_first_window(
    recurrence: PooledSpec | None, plan: Plan, windowing: Windowing, documents: list[int]
) -> torch.Tensor:
    """The gradient of the last of three windows' loss with respect to the embedding of a token of the first one alone.

    A neighbour whose document goes through all windows makes sure that a state is passed on in any case.
    """
    model, token = small_model(recurrence), 60
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())  # as an output it is in every window
    batch = chain_batch(windowing, [documents, [24]], windows=3)
    inputs, targets = batch.inputs_WBT.clamp(max=59), batch.targets_WBT
    inputs[0, 0, 2] = token
    targets[:-1] = NOT_SCORED
    changed = WindowBatch(inputs, targets, batch.fresh_WB, batch.starts, batch.scored, batch.step_scored)
    chain = Chain(model, plan)
    gradients = dict(zip(chain.trained, chain.differentiate(changed).gradients, strict=True))
    return gradients[model.transformer.wte.weight][token]


def activation_peak(recurrence: PooledSpec | None, policy: str, windows: int, size: int, batch_size: int = 1) -> int:
    """Bytes above the weights, the buffer of their gradients and the batch."""
    model = small_model(recurrence, n_positions=size, n_layer=2, vocab_size=500).train()
    batch, chain = full_batch(windows, batch_size, size), Chain(model, fixed_plan(policy, windows))
    with MemoryTracker() as tracker:
        tracker.hold([*model.parameters(), batch.inputs_WBT, batch.targets_WBT, batch.fresh_WB])
        before = tracker.live
        buffer = chain.differentiate(batch).buffer
        left = before + buffer.nbytes
        assert tracker.live == left
    return tracker.peak - left


@pytest.mark.parametrize("recurrence", [None, POOLED], ids=["none", "pooled"])
def test_recomputing_all_windows_needs_the_memory_of_few(recurrence):
    few, many = (activation_peak(recurrence, "all", windows, size=128) for windows in (2, 40))
    assert many <= 1.02 * few


def test_a_plain_model_keeps_one_window_whatever_the_plan():
    kept, recomputed = (activation_peak(None, policy, 8, size=64) for policy in ("none", "all"))
    assert kept == recomputed == activation_peak(None, "none", 2, size=64) + 6 * 4, "a loss for each further window"


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_plain_step_is_that_of_windows_that_are_read_before_any_is_scored(dropout, monkeypatch):
    rates = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], dropout)
    model = small_model(n_layer=2, **rates).train()
    loss, gradients = loss_and_gradients(model, Plan(1), MIXED)
    monkeypatch.setattr(NextTokenScorer, "is_separate", False)
    same_loss, same_gradients = loss_and_gradients(model, Plan(1), MIXED)
    if dropout:  # the sums of windows are made in another order
        torch.testing.assert_close(loss, same_loss, rtol=1e-6, atol=0)
        assert_same(gradients, same_gradients, 1e-5)
    else:
        assert loss == same_loss and all(map(torch.equal, gradients, same_gradients))


def test_keeping_all_windows_needs_memory_for_each():
    two, four, eight = (activation_peak(POOLED, "none", windows, size=16) for windows in (2, 4, 8))
    assert eight - four == pytest.approx(2 * (four - two), rel=0.01)
    assert eight > 1.5 * two


@pytest.mark.parametrize("size", [8, 16])
def test_a_recomputed_window_leaves_no_more_than_the_papers_two_vectors(size):
    batch_size, hidden = 3, 24
    fewer, more = (activation_peak(POOLED, "all", windows, size, batch_size) for windows in (12, 20))
    floats_per_row = (more - fewer) / 8 / batch_size / 4
    assert 0 < floats_per_row <= 2 * hidden


def test_the_loss_is_a_sum_over_scored_tokens():
    model = small_model()
    logits = model.logits(model.read(MIXED.inputs_WBT.flatten(0, 1)).top_BTK)
    expected = F.cross_entropy(logits.flatten(0, 1), MIXED.targets_WBT.flatten(), reduction="sum")
    torch.testing.assert_close(Chain(model, Plan(1)).differentiate(MIXED).loss, expected)


@pytest.mark.parametrize("recurrence", MODELS.values(), ids=MODELS)
def test_uniform_windows_are_the_same_wherever_documents_begin(recurrence):
    model = small_model(recurrence, n_layer=2).double().train()
    expected = loss_and_gradients(model, Plan(2), MIXED)
    found = Chain(model, Plan(2), Execution(cuda_graph=True), capture=False).differentiate_now(
        replace(MIXED, starts=("none",) * WINDOWS)
    )
    torch.testing.assert_close(found[0].detach(), expected[0], rtol=1e-10, atol=0)
    assert_same(found[1], expected[1], 1e-10)


GRAPH, FUSED, BOTH = Execution(cuda_graph=True), Execution(fused_kernels=True), Execution(True, True)


@pytest.mark.parametrize(
    ("fields", "device", "expected"),
    [
        ({"tokens": 2_000_000}, "cuda", BOTH),
        ({"tokens": 1_999_999}, "cuda", GRAPH),
        ({"cuda_graph": True, "fused_kernels": True, "tokens": 1_000}, "cuda", BOTH),
        ({"cuda_graph": False, "fused_kernels": True}, "cuda", FUSED),
        ({"cuda_graph": False, "fused_kernels": False}, "cuda", Execution()),
        ({"cuda_graph": True, "fused_kernels": False}, "cuda", GRAPH),
        ({"tokens": 2_000_000}, "cpu", Execution()),
        ({"cuda_graph": True, "fused_kernels": True}, "cpu", Execution()),
        ({"cuda_graph": True, "fused_kernels": False}, "cpu", Execution()),
    ],
)
def test_a_trial_runs_in_the_fastest_way_that_it_allows(fields, device, expected):
    assert chosen_execution(TrialConfig(**fields), 50_000_000, torch.device(device)) == expected


def test_a_larger_base_is_worth_compiling_for_with_fewer_tokens():
    short = TrialConfig(tokens=1_000_000)
    assert chosen_execution(short, 50_000_000, torch.device("cuda")) == GRAPH
    assert chosen_execution(short, 100_000_000, torch.device("cuda")) == BOTH
