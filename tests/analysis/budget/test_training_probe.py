"""A run is measured as it was trained, and stays as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from recur_tune.analysis.budget.measurement import measure
from recur_tune.analysis.budget.training_probe import probe_training, trial_to_measure
from recur_tune.common.errors import UserError
from recur_tune.common.windowing import Windowing
from recur_tune.data.tokens import prepare
from recur_tune.models.pretrained import load_model
from recur_tune.tasks.language_modelling.evaluation import evaluate
from tests.analysis.budget import made, trained, trial_in

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"recurrence": "pooled", "trainable": "recurrence"},
        {"recurrence": "none", "checkpointing": "none", "dropout": 0.1, "decay": "cosine"},
    ],
    ids=["frozen", "plain"],
)
def test_a_step_takes_the_memory_that_it_took_when_the_run_was_trained(tmp_path: Path, fields: dict[str, Any]) -> None:
    run = trained(tmp_path, "run", **fields)
    shutil.rmtree(tmp_path / "base")  # an exported run may lie far from it
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    found = probe_training(run, f"text:{tmp_path / 'books'}", CPU)
    assert found.peak_memory == found.recorded_memory == json.loads(before["result.json"])["measured_peak_memory"]
    assert [next(found.steps).last for _ in range(2)] == [False, False]  # further than the run's own budget
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_the_score_is_of_the_saved_weights(tmp_path: Path) -> None:
    run = made(tmp_path, "run")
    corpus = f"text:{tmp_path / 'books'}"
    found = probe_training(run, corpus, CPU)
    model, tokenizer = load_model(run)
    expected = evaluate(model, prepare(corpus, "validation", tokenizer), Windowing(16, 2), batch_size=1)
    assert found.evaluation.metrics() == pytest.approx(expected.metrics(), rel=1e-5)
    assert found.recorded_memory is None


def test_a_model_that_does_not_say_how_it_was_trained_is_refused(tmp_path: Path) -> None:
    trial_in(tmp_path)
    with pytest.raises(UserError, match=r"base does not say how it was trained \(no trial.yaml\)"):
        trial_to_measure(tmp_path / "base")


def test_what_two_runs_do_not_share_is_said(tmp_path: Path) -> None:
    one, other = made(tmp_path, "one", recurrence="none", window=12), made(tmp_path, "other", batch=2)
    corpora = (f"text:{tmp_path / 'books'}", f"text:{tmp_path}/./books")
    unlike, plain, corpus = measure((one, other), corpora, rounds=1).remarks
    assert "window (12 and 16), batch (4 and 2)" in unlike
    assert f"{one} passes no state on" in plain and "several corpora" in corpus
