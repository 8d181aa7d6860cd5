"""Tables, and progress as plain lines where stderr is no terminal."""

from __future__ import annotations

import pytest

from recur_tune.cli import display
from recur_tune.cli.display import TokenProgress, print_table
from recur_tune.cost.descriptors import COSTS


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


def test_names_in_a_table_never_wrap(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(display.stdout, "_width", 80)
    names = [cost.explained for cost in COSTS.values()]
    print_table("", dict.fromkeys(names, "1,234,567 (12,345 of them the recurrence's)"))
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(name) for line in lines) for name in names)
