"""What the help says of a trial's flags."""

from __future__ import annotations

import io
import re
import sys

import pytest

from recur_tune.cli import start
from recur_tune.recurrences.registry import MECHANISMS
from tests.cli.run import run


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("skip", "true|false"), ("warmup-steps", "INTEGER"), ("dropout", "FLOAT"), ("base", "TEXT"),
        ("recurrence", "|".join(["none", *MECHANISMS])), ("tokens", "AMOUNT"), ("validate-every", "AMOUNT"),
        ("memory-budget", "SIZE"), ("l-ins", "INTEGER|all"), ("block-layer", "INTEGER|upper"), ("lora-alpha", "FLOAT"),
        ("base-bits", "16|8|4"), ("cuda-graph", "true|false|auto"),
    ],
)  # fmt: skip
def test_the_help_says_what_a_flag_takes(flag: str, values: str) -> None:
    assert re.search(rf"--{flag} {re.escape(values)}\s", run("train", "--help").out)


def test_a_flag_has_one_default() -> None:
    for command, default in (("train", "a twentieth of the run's, at most 100."), ("pretrain", "the preset's]")):
        text = " ".join(run(command, "--help").out.split())
        told = re.search(r"--warmup-steps INTEGER (.*?) --", text)
        assert told and told[1].count("default") == 1 and told[1].endswith(f"default: {default}")


def test_a_terminal_shows_a_line_before_the_commands_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, said in ((Terminal(), "loading …\r\033[K"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "argv", ["recur-tune", "--version"])
        with pytest.raises(SystemExit) as ended:
            start.main()
        assert (ended.value.code, stream.getvalue()) == (0, said)
