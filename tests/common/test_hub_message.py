"""What could not be loaded, told in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from recur_tune.common.hub import hub_message


def test_a_misspelt_folder_is_told_the_one_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("base", "plain"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    error = OSError("not found on https://huggingface.co")
    said = hub_message("base", "runs/bsae", error, "a preset")
    assert said.startswith("base: there is no folder runs/bsae; did you mean runs/base? Nor could it be fetched")
    for name in ("runs/other", "nowhere/base", "gpt3"):
        assert hub_message("base", name, error, "a preset").startswith(f"base: '{name}' is neither a local folder nor")
