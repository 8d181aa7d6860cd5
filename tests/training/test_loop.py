"""The training loop: schedule, validation, stopping, faults, resuming."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from safetensors.torch import load_file, save_file

from recur_tune.common.errors import UserError
from recur_tune.training.checkpoint import BEFORE, FILE, DamagedCheckpoint, load_checkpoint, save_checkpoint
from recur_tune.training.loop import Diverged, Report, Trainer
from tests.training.runs import flip, trainer_of, trial


def told(reports: list[Report]) -> list[Report]:
    """Reports without the one thing that no two runs share."""
    return [replace(report, tokens_per_second=0.0) for report in reports]


@pytest.mark.slow
def test_training_lowers_the_loss_and_counts_scored_tokens() -> None:
    reports = list(trainer_of(trial(tokens=6000)).run())
    assert reports[-1].loss < 0.7 * reports[0].loss
    assert reports[-1].last and not any(report.last for report in reports[:-1])
    assert reports[-2].tokens < 6000 <= reports[-1].tokens


def test_the_learning_rate_warms_up_then_stays_or_decays() -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(("recurrence", "stop_after"), [("memory", 1), ("none", 4), ("memory", 9)])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, recurrence: str, stop_after: int) -> None:
    config = trial(recurrence=recurrence, tokens=800)  # more than an epoch of the text
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


def saved_bytes(folder: Path) -> bytes:
    """Of a checkpoint after a step."""
    trainer = trainer_of(trial())
    next(trainer.run())
    save_checkpoint(trainer, folder)
    return (folder / FILE).read_bytes()


def state_of(trainer: Trainer) -> dict[str, Any]:
    moments = {name: trainer.optimizer.state[p] for name, p in trainer.trained.items()}
    return {"weights": {**trainer.trained}, "moments": moments, "progress": trainer.progress}


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=60)
def test_no_flipped_bit_of_a_checkpoint_is_ever_taken_in(data: st.DataObject, whole: bytes, target: Trainer) -> None:
    """Neither in weights and moments nor in what stands before them; a bit that means nothing may be flipped."""
    header = 8 + int.from_bytes(whole[:8], "little")
    place = data.draw(st.integers(0, header - 1) | st.integers(header, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_bytes(damaged)
        try:
            load_checkpoint(target, Path(folder))
        except DamagedCheckpoint:
            return
    saved = trainer_of(trial())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_bytes(whole)
        load_checkpoint(saved, Path(folder))
    torch.testing.assert_close(state_of(target), state_of(saved), rtol=0, atol=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return saved_bytes(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def target() -> Trainer:
    return trainer_of(trial())


@pytest.mark.slow
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    first = trainer_of(trial())
    run = first.run()
    tokens = []
    for _ in range(3):
        tokens.append(next(run).tokens)
        save_checkpoint(first, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([FILE, BEFORE]), "two are enough"
    flip(tmp_path / FILE)
    second = trainer_of(trial())
    said = load_checkpoint(second, tmp_path)
    assert str(tmp_path / FILE) in said and f"after {tokens[1]} tokens" in said
    assert second.progress.tokens == tokens[1]
    assert told(list(second.run())) == told(list(trainer_of(trial()).run()))[2:]


@pytest.mark.slow
def test_where_no_checkpoint_is_whole_the_trainer_stays_as_it_was_made(tmp_path: Path) -> None:
    first = trainer_of(trial())
    run = first.run()
    for _ in range(2):
        next(run)
        save_checkpoint(first, tmp_path)
    for name in (FILE, BEFORE):
        flip(tmp_path / name)
    second = trainer_of(trial())
    with pytest.raises(DamagedCheckpoint, match="its digest is not that of its content"):
        load_checkpoint(second, tmp_path)
    assert told(list(second.run())) == told(list(trainer_of(trial()).run()))


def test_a_checkpoint_without_a_digest_is_resumed(tmp_path: Path) -> None:
    first = trainer_of(trial())
    next(first.run())
    save_checkpoint(first, tmp_path)
    tensors = load_file(tmp_path / FILE)
    save_file(tensors, tmp_path / FILE, metadata={"progress": json.dumps(asdict(first.progress))})
    second = trainer_of(trial())
    assert load_checkpoint(second, tmp_path) == ""
    assert second.progress == first.progress


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


def test_a_cpu_trains_without_a_cuda_graph_that_is_asked_for() -> None:
    asked, plain = (told(list(trainer_of(trial(cuda_graph=graph)).run())) for graph in (True, False))
    assert asked == plain
