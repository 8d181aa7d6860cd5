"""What a command says before its first number, where no terminal shows a spinner."""

from __future__ import annotations

from pathlib import Path

import pytest

from recur_tune.cli import display
from recur_tune.cli.display import TokenProgress
from tests.cli.run import run

_SHORT = ("--tokens", 256, "--validate-every", 128, "--validation-tokens", 64, "--window", 16, "--batch", 2)


def test_a_training_says_each_stage_before_it_begins(tmp_path: Path) -> None:
    told = run("pretrain", "--corpus", "recall", *_SHORT, "--out", tmp_path / "base")
    assert "validation loss before training" in told.out
    stages = [line.strip() for line in told.err.splitlines() if line.endswith(" …")]
    assert stages == [
        "loading torch …", "reading recall …", "loading tiny …", "validating before the first step …",
        f"training {tmp_path / 'base'} …", "validating …",
    ]  # fmt: skip


def test_a_stage_is_told_again_where_it_took_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(display.time, "monotonic", lambda: now)
    with TokenProgress("training", 10) as progress:
        for seconds in (5, 15, 5, 5):
            progress.stage("validating …")
            now += seconds
            progress.update(1)
    assert capsys.readouterr().err.count("validating …") == 2
