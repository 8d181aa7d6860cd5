"""Distillation: the teacher's predictions, the loss that they make, and training with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import Plan
from recur_tune.bptt.step import train_step
from recur_tune.common.errors import UserError
from recur_tune.common.shape import shape_of
from recur_tune.common.windowing import NOT_SCORED, Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.training_memory import plan_memory, track_step
from recur_tune.data.batches import WindowBatch
from recur_tune.data.teacher import TeacherRows
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.ops.distillation import distillation
from recur_tune.tasks.language_modelling.windows import TextStream
from recur_tune.training import teacher as module
from recur_tune.training.teacher import taught
from tests.conftest import small_config, small_model
from tests.models import chain_batch, full_batch
from tests.models.mechanisms import SPECS
from tests.training.runs import split_of, trainer_of, trial

CPU = torch.device("cpu")
LEARNING = {"loss": "distill", "teacher_window": 12, "teacher_top": 5}


def textbook(logits_NV, target_N, q_NV, likeliest_NQ, weight) -> torch.Tensor:
    """The mixed loss from whole distributions, with the unlikely tokens as one event."""
    p_NV, total = logits_NV.softmax(-1), logits_NV.new_zeros(())
    for p, q, target, likeliest in zip(p_NV, q_NV, target_N.tolist(), likeliest_NQ, strict=True):
        if target == NOT_SCORED:
            continue
        others = torch.ones(len(p), dtype=torch.bool)
        others[likeliest] = False
        ours, theirs = (torch.cat([one[likeliest], one[others].sum()[None]]) for one in (p, q))
        total = total - (1 - weight) * p[target].log() + weight * (theirs * (theirs / ours).log()).sum()
    return total


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_loss_and_gradient_are_the_textbooks(weight):
    logits_NV = (4 * torch.randn(600, 11, dtype=torch.float64)).requires_grad_()
    target_N = torch.randint(11, (600,))
    target_N[::3] = NOT_SCORED
    q_NV = torch.randn(600, 11, dtype=torch.float64).softmax(-1)
    q_NQ, tokens_NQ = q_NV.topk(4)
    rest_N1 = 1 - q_NQ.sum(-1, keepdim=True)
    expected = textbook(logits_NV, target_N, q_NV, tokens_NQ, weight)
    ours_NV = torch.cat([logits_NV.detach(), torch.randn(600, 5, dtype=torch.float64)], dim=-1)  # behind: padding
    log_q_NR = torch.cat([q_NQ, rest_N1], dim=-1).log() + 0.3  # which the loss normalises
    loss = distillation(ours_NV, target_N, tokens_NQ.int(), log_q_NR, weight, 11)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=0)
    [gradient] = torch.autograd.grad(expected, [logits_NV])
    torch.testing.assert_close(ours_NV[:, :11], gradient, rtol=1e-9, atol=1e-12)
    assert ours_NV[:, 11:].abs().max() == 0


def test_a_student_that_is_sure_has_a_finite_gradient():
    logits = torch.tensor([[90.0, 0, 0, -90]])  # all others together have no digit beside the likeliest
    loss = distillation(logits, torch.tensor([3]), torch.tensor([[0, 1]]), torch.tensor([[-1.0, -2, -3]]), 0.5, 4)
    assert loss.isfinite() and logits.isfinite().all() and abs(logits.sum()) < 1e-6


@pytest.fixture
def cached(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path))


def predictions(split: TokenisedSplit, config: TrialConfig, model) -> TokenisedSplit:
    return taught(config, model, split, CPU)


def test_the_teacher_is_the_base_that_reads_long_windows(cached, monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 7)
    split, model = split_of([30, 1, 17]), small_model(SPECS["pooled, one layer"]).train()
    given = predictions(split, trial(**LEARNING), model)
    assert model.training and model.recurrence is not None and split.teacher is None
    found = given.teacher
    model.recurrence = None
    model.eval()
    windowing = Windowing(12, 6)
    for begin, end in split.document_inputs():
        for first, last, scored in windowing.cut(begin, end).tolist():
            with torch.no_grad():
                tokens = torch.from_numpy(split.tokens[first:last].astype(np.int64))
                log_p_TV = model.logits(model.read(tokens[None]).top_BTK[0]).log_softmax(-1)[scored - first :]
            log_p_TQ, likeliest_TQ = log_p_TV.topk(5)
            assert found.tokens_NQ[scored:last].tolist() == likeliest_TQ.tolist()
            rest_T1 = (1 - log_p_TQ.exp().sum(-1, keepdim=True)).log()
            kept = torch.tensor(found.log_p_NR[scored:last]).float()
            torch.testing.assert_close(kept, torch.cat([log_p_TQ, rest_T1], -1), rtol=2e-3, atol=1e-4)


def test_predictions_are_made_once_for_all_that_share_base_text_and_teacher(cached, monkeypatch):
    split, model, made = split_of([30, 17]), small_model(SPECS["pooled, one layer"]), []
    real = module._make
    monkeypatch.setattr(module, "_make", lambda *given: (made.append(1), real(*given)))
    config = trial(**LEARNING)
    for fields in ({}, {"width": 7}, {"recurrence": "none"}, {"window": 5, "learning_rate": 1.0, "teacher_weight": 1}):
        predictions(split, TrialConfig(**config.model_dump() | fields), model)
    assert len(made) == 1
    for fields in ({"teacher_window": 10}, {"teacher_top": 4}):
        predictions(split, TrialConfig(**config.model_dump() | fields), model)
    predictions(split_of([30, 16]), config, model)
    with torch.no_grad():
        model.body.final_norm.weight += 1
    predictions(split, config, model)
    assert len(made) == 5


def test_what_was_interrupted_leaves_nothing_half_made(cached, tmp_path):
    def stop(tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        taught(trial(**LEARNING), small_model(None), split_of([30]), CPU, stop)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize("workers", [1, 2])
def test_every_position_has_its_own_prediction(workers):
    split = split_of([30, 9, 17])
    row_N = np.arange(len(split.tokens))
    marked = replace(split, teacher=_marks(row_N))
    for rank in range(workers):
        batch = next(TextStream(marked, Windowing(8, 2), 3, 4, 0, rank, workers, 0.7))
        assert batch.teacher.weight == 0.7
        scored = batch.targets_WBT != NOT_SCORED
        place_N = batch.teacher.tokens[..., 0][scored].long()
        assert torch.from_numpy(split.tokens)[place_N + 1].equal(batch.targets_WBT[scored])


def _marks(row_N: np.ndarray):
    """Predictions in which a row's tokens are its own number."""
    from recur_tune.data.teacher import TeacherPredictions

    return TeacherPredictions(np.stack([row_N, row_N], 1), np.zeros((len(row_N), 3), np.float16))


def with_teacher(batch: WindowBatch, dtype: torch.dtype, vocabulary: int) -> WindowBatch:
    """A batch with a random teacher of three tokens."""
    shape = batch.inputs_WBT.shape
    log_q, tokens = torch.randn(*shape, vocabulary, dtype=dtype).log_softmax(-1).topk(3)
    rest = (1 - log_q.exp().sum(-1, keepdim=True)).log()
    return replace(batch, teacher=TeacherRows(tokens.int(), torch.cat([log_q, rest], -1), 0.6))


MIXED = chain_batch(Windowing(6, 2), [[14, 3], [6, 10, 2], [14]], 4)


@pytest.mark.parametrize("kind", ["none", *SPECS])
def test_every_mechanism_and_plan_has_the_gradient_by_hand(kind):
    torch.manual_seed(0)
    model = small_model(SPECS.get(kind)).double().eval()
    batch = with_teacher(MIXED, torch.float64, model.config.vocab_size)
    found = [Chain(model, Plan(kept)).differentiate(batch) for kept in (1, 4)]
    total = torch.zeros((), dtype=torch.float64)
    left = None
    for window, start in enumerate(batch.starts):
        entry = None if start == "all" else left
        if entry is not None and model.recurrence.stops_gradients:
            entry = tuple(one.detach() for one in entry)
        fresh = batch.fresh_WB[window] if start == "some" else None
        reading = model.read(batch.inputs_WBT[window], entry, fresh)
        left, rows = reading.state, batch.teacher.of_window(window)
        log_p = model.logits(reading.top_BTK.flatten(0, 1)).log_softmax(-1)
        target = batch.targets_WBT[window].flatten()
        total = total + 0.4 * F.nll_loss(log_p, target, ignore_index=NOT_SCORED, reduction="sum")
        top = log_p.gather(1, rows.tokens.long())
        parts = torch.cat([top, torch.log1p(-top.exp().sum(-1, keepdim=True))], -1)
        divergence = F.kl_div(parts, rows.log_p, log_target=True, reduction="none").sum(-1)
        total = total + 0.6 * divergence[target != NOT_SCORED].sum()
    by_hand = torch.autograd.grad(total, Chain(model, Plan(1)).trained, allow_unused=True)
    for one in found:
        torch.testing.assert_close(one.loss, total.detach(), rtol=1e-10, atol=0)
        for ours, theirs in zip(one.gradients, by_hand, strict=True):
            theirs = torch.zeros_like(ours) if theirs is None else theirs
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8 * float(theirs.abs().max()) + 1e-14)


@pytest.mark.parametrize("plan", [Plan(1), Plan(3)], ids=str)
def test_the_predicted_memory_is_that_of_a_real_step(plan):
    fields = {"window": 16, "bptt_windows": 3, "batch": 2, "width": 20, "depth": 1, "precision": "float32"}
    config = TrialConfig(**fields, loss="distill", teacher_top=20)
    model = small_model(config.recurrence_spec, n_layer=2).train()
    batch, optimizer = full_batch(3, 2, 16), make_optimizer(model, 1e-3, 0.0)
    teacher = TeacherRows(torch.zeros(3, 2, 16, 20, dtype=torch.int32), torch.zeros(3, 2, 16, 21).half(), 0.5)
    chain, batch = Chain(model, plan), replace(batch, teacher=teacher)
    train_step(chain, optimizer, batch, 1.0, "float32")
    real = track_step(MemoryTracker(), chain, optimizer, batch, "float32")
    assert plan_memory(config, small_config(n_layer=2), plan, 2) == pytest.approx(real, rel=0.05)


def test_a_taught_run_learns_the_teacher(cached):
    config = trial(**LEARNING, teacher_weight=1.0, tokens=800)
    trainer = trainer_of(config)
    split = trainer.stream.split
    trainer.stream.split = taught(config, small_model(None, n_layer=2), split, CPU)
    losses = [report.loss for report in trainer.run()]
    assert min(losses[-5:]) < 0.8 * losses[0] and min(losses) >= 0


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"teacher_window": 4000}, "teacher_window: 4000 is more than the 32 positions of gpt2"),
        ({"teacher_top": 61}, "teacher_top: 61 is not smaller than the vocabulary of gpt2, 61 tokens; choose one from"),
    ],
)
def test_a_base_that_cannot_be_this_teacher_is_one_sentence(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        TrialConfig(window=8, loss="distill", **fields).check_base(shape_of(small_config().to_dict()))
