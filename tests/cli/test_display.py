"""Progress as plain lines, where stderr is no terminal."""

from __future__ import annotations

import pytest

from recur_tune.cli import display
from recur_tune.cli.display import TokenProgress


def test_lines_of_progress_tell_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    with TokenProgress("training runs/a", 4_000) as progress:
        progress.update(500, important=True)  # resumed: nothing is known of its speed yet
        now[0] += 20
        progress.update(1_500)
        progress.update(4_000, important=True)
    first, resumed, between, last = capsys.readouterr().err.splitlines()
    assert first == "training runs/a …" and "left" not in resumed + last
    assert between.split() == ["1.5k/4k", "tokens", "50/s", "about", "50s", "left"]
