"""No kernel is without a test."""

from __future__ import annotations

import re
from pathlib import Path

import recur_tune
from tests.kernels import (
    test_attention,
    test_cache,
    test_fast_weights,
    test_gated_delta,
    test_passes,
    test_scores,
)

_TESTS = (test_attention, test_cache, test_fast_weights, test_gated_delta, test_passes, test_scores)


def _names(decorator: str) -> tuple[list[str], str]:
    """The functions that have it, wherever in the package they are, and the text of all their files."""
    texts = [text for file in Path(recur_tune.__file__).parent.rglob("*.py") if decorator in (text := file.read_text())]
    source = "\n".join(texts)
    return re.findall(rf"^{decorator}\ndef (\w+)", source, re.MULTILINE), source


def test_every_kernel_is_run_by_a_test() -> None:
    kernels, _ = _names("@kernel")
    assert len(kernels) == len(set(kernels)), "tests tell kernels apart by their names"
    tests = [test for file in _TESTS for name, test in vars(file).items() if name.startswith("test_")]
    marks = [mark for test in tests for mark in getattr(test, "pytestmark", [])]
    assert set(kernels) == {name for mark in marks if mark.name == "launches" for name in mark.args}


def test_every_part_of_a_kernel_is_used_by_one() -> None:
    parts, source = _names("@triton.jit")
    assert parts
    assert [part for part in parts if not re.search(rf"(?<!def )\b{part}[(),]", source)] == []
