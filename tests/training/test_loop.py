"""The training loop: schedule, validation, stopping, faults, resuming."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from recur_tune.errors import UserError
from recur_tune.training.checkpoint import FILE, load_checkpoint, save_checkpoint
from recur_tune.training.loop import Diverged, Report
from tests.training.runs import trainer_of, trial


def told(reports: list[Report]) -> list[Report]:
    """Reports without the one thing that no two runs share."""
    return [replace(report, tokens_per_second=0.0) for report in reports]


@pytest.mark.slow
def test_training_lowers_the_loss_and_counts_scored_tokens() -> None:
    reports = list(trainer_of(trial(tokens=6000)).run())
    assert reports[-1].loss < 0.7 * reports[0].loss
    assert reports[-1].last and not any(report.last for report in reports[:-1])
    assert reports[-2].tokens < 6000 <= reports[-1].tokens


def test_the_learning_rate_rises_linearly_then_stays_or_falls_along_a_cosine() -> None:
    flat = list(trainer_of(trial(warmup_steps=4)).run())
    assert [report.learning_rate for report in flat[:5]] == pytest.approx(
        [3e-3 * part for part in (0.25, 0.5, 0.75, 1, 1)]
    )
    assert flat[-1].learning_rate == 3e-3
    falling = list(trainer_of(trial(warmup_steps=0, decay="cosine")).run())
    for before, report in pairwise(falling):
        assert report.learning_rate == pytest.approx(3e-3 * (1 + math.cos(math.pi * before.tokens / 1000)) / 2)


def test_a_short_run_has_its_full_learning_rate_from_the_first_step_on() -> None:
    reports = list(trainer_of(trial(warmup_steps=None)).run())
    assert 12 <= len(reports) < 20 and {report.learning_rate for report in reports} == {3e-3}


def test_a_recurrence_learns_at_its_own_rate() -> None:
    """Adam's first step goes as far as the learning rate, whatever the gradient."""
    trainer = trainer_of(trial(recurrence_rate=8.0, learning_rate=1e-3, warmup_steps=0, clip_norm=1e9))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    next(trainer.run())
    farthest = {"base": 0.0, "recurrence": 0.0}
    for name, parameter in trainer.model.named_parameters():
        part = "recurrence" if name.startswith("recurrence.") else "base"
        farthest[part] = max(farthest[part], float((parameter.detach() - before[name]).abs().max()))
    assert farthest == pytest.approx({"base": 1e-3, "recurrence": 8e-3}, rel=0.01)


def test_validation_comes_every_so_many_tokens_and_at_the_end() -> None:
    reports = list(trainer_of(trial(tokens=1000, validate_every=300)).run())
    crossed = [
        now.tokens // 300 > before
        for now, before in zip(reports, [0, *[r.tokens // 300 for r in reports]], strict=False)
    ]
    assert [report.validation is not None for report in reports] == [*crossed[:-1], True]


def test_training_stops_when_validation_no_longer_improves() -> None:
    config = trial(tokens=100_000, validate_every=150, patience=2, learning_rate=1e-12, warmup_steps=0)
    trainer = trainer_of(config)
    trainer.progress.best_loss = 0.0  # unbeatable
    reports = list(trainer.run())
    assert sum(report.validation is not None for report in reports) == 2
    assert reports[-1].last and reports[-1].tokens < 1000


def test_a_loss_that_is_not_finite_is_caught_before_a_weight_changes() -> None:
    trainer = trainer_of(trial())
    with torch.no_grad():
        trainer.model.transformer.ln_f.weight[0] = math.inf
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    with pytest.raises(Diverged, match=r"learning_rate: 0\.003 made training diverge after 0 steps"):
        next(trainer.run())
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


@pytest.mark.parametrize(("recurrence", "stop_after"), [("memory", 1), ("none", 4), ("memory", 9)])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, recurrence: str, stop_after: int) -> None:
    config = trial(recurrence=recurrence, tokens=1500)  # more than an epoch of the text
    dropout = {"resid_pdrop": 0.1, "embd_pdrop": 0.1}
    whole = told(list(trainer_of(config, **dropout).run()))

    first = trainer_of(config, **dropout)
    run = first.run()
    beginning = told([next(run) for _ in range(stop_after)])
    save_checkpoint(first, tmp_path)
    second = trainer_of(config, **dropout)
    torch.manual_seed(999)  # whatever the generator did in between does not matter
    load_checkpoint(second, tmp_path)

    assert beginning + told(list(second.run())) == whole
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_checkpoint_that_is_cut_short_or_of_another_model_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(trial())
    next(trainer.run())
    save_checkpoint(trainer, tmp_path)
    with pytest.raises(UserError, match="damaged or belongs to another model"):
        load_checkpoint(trainer_of(trial(width=17)), tmp_path)
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="damaged"):
        load_checkpoint(trainer_of(trial()), tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load_checkpoint(trainer_of(trial()), tmp_path / "nowhere")


def test_the_measured_peak_is_that_of_a_whole_step() -> None:
    trainer = trainer_of(trial())
    list(trainer.run())
    weights = sum(p.numel() * 4 for p in trainer.model.parameters())
    assert trainer.measured_peak_bytes is not None
    assert trainer.measured_peak_bytes > 4 * weights  # weights, gradients, two moments, and activations


def test_a_trial_that_asks_for_a_recording_trains_on_a_cpu_without_one() -> None:
    replayed, plain = (told(list(trainer_of(trial(speed=speed)).run())) for speed in ("replayed", "plain"))
    assert replayed == plain
