"""A run's folder through the faults that a night can bring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from recur_tune.common.errors import UserError
from recur_tune.config.trial import TrialConfig
from recur_tune.models.pretrained import load_model
from recur_tune.training.loop import Report
from recur_tune.training.run_folder import run_in_folder, stored_config


def tiny_trial() -> TrialConfig:
    return TrialConfig(
        base="tiny", corpus="recall", window=16, bptt_windows=2, batch=2, width=8, depth=1, tokens=600,
        validate_every=200,
        validation_tokens=200,
    )  # fmt: skip


def reports(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "reports.jsonl").read_text().splitlines()
    return [json.loads(line) | {"tokens_per_second": 0} for line in lines]


@pytest.mark.slow
def test_a_killed_run_resumes_from_its_last_validation(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill_after_the_first_validation(report: Report) -> None:
        if report.tokens > 300:
            raise Killed  # between two checkpoints, and nothing is saved on the way out

    whole = run_in_folder(tiny_trial(), tmp_path / "whole", resume=False, listen=lambda report: None)
    with pytest.raises(Killed):
        run_in_folder(tiny_trial(), tmp_path / "cut", resume=False, listen=kill_after_the_first_validation)
    with (tmp_path / "cut" / "reports.jsonl").open("a") as file:
        file.write('{"step": 99, "tok')  # a line that the kill cut short
    again = run_in_folder(
        stored_config(tmp_path / "cut", {}), tmp_path / "cut", resume=True, listen=lambda report: None
    )

    assert reports(tmp_path / "cut") == reports(tmp_path / "whole")
    assert again | {"measured_peak_memory": 0} == whole | {"measured_peak_memory": 0}


def test_a_finished_run_can_be_given_a_larger_budget_and_only_that(tmp_path: Path) -> None:
    run_in_folder(tiny_trial(), tmp_path / "run", resume=False, listen=lambda report: None)
    longer = stored_config(tmp_path / "run", {"tokens": "900"})
    result = run_in_folder(longer, tmp_path / "run", resume=True, listen=lambda report: None)
    assert result["tokens"] >= 900
    assert [report["step"] for report in reports(tmp_path / "run")] == list(range(1, result["steps"] + 1))
    with pytest.raises(UserError, match=r"window: the run in .* has 16 and cannot be resumed with 8"):
        stored_config(tmp_path / "run", {"window": 8})


def test_resuming_a_finished_run_returns_its_result_and_trains_no_further(tmp_path: Path) -> None:
    first = run_in_folder(tiny_trial(), tmp_path / "run", resume=False, listen=lambda report: None)
    heard: list[Report] = []
    assert run_in_folder(tiny_trial(), tmp_path / "run", resume=True, listen=heard.append) == first
    assert heard == []


def test_the_numbers_told_are_those_of_the_model_that_is_saved(tmp_path: Path) -> None:
    config = tiny_trial().model_copy(update={"learning_rate": 0.3})
    result = run_in_folder(config, tmp_path / "run", resume=False, listen=lambda report: None)
    model, tokenizer = load_model(tmp_path / "run")
    task = config.task.build(config.task_spec)
    validation = task.sample(task.prepare("recall", "validation", tokenizer), config.validation_size)
    saved = task.evaluate(model, validation, config.windowing, batch_size=2).metrics()
    assert result["validation"] == pytest.approx(saved)
    assert result["last_validation"]["loss"] > result["validation"]["loss"] == result["best_validation_loss"]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("CUDA error: out of memory")]
)
def test_running_out_of_memory_is_one_sentence(
    error: RuntimeError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("recur_tune.training.loop.train_step", too_large)
    with pytest.raises(UserError, match="batch: 2 chains of windows of 16 do not fit"):
        run_in_folder(tiny_trial(), tmp_path / "run", resume=False, listen=lambda report: None)
