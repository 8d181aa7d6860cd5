"""How kernels run here: compiled on a GPU, or else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from recur_tune.ops.triton.jit import kernel
from tests.kernels.quick_interpreter import quick_interpreter

# Triton's interpreter takes minutes for these.
collect_ignore = ["test_real_sizes.py"] if os.environ.get("TRITON_INTERPRET") == "1" else []


@pytest.fixture(autouse=True, scope="session")
def _interpreter() -> Iterator[None]:
    if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
        yield
        return
    with quick_interpreter():
        yield


@pytest.fixture(autouse=True)
def device() -> torch.device:
    """Where kernels run."""
    pytest.importorskip("triton")
    torch.manual_seed(0)
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU, or Triton's interpreter: TRITON_INTERPRET=1")
    return torch.device("cuda")


@pytest.fixture(autouse=True)
def _launched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: torch.device) -> Iterator[None]:
    """A test runs the kernels that it says it does."""
    launched, launch = set(), kernel.__getitem__

    def noted(self: kernel, grid: tuple[int, ...]) -> Callable[..., Any]:
        launched.add(self._compiled.fn.__name__)
        return launch(self, grid)

    monkeypatch.setattr(kernel, "__getitem__", noted)
    yield
    said = {name for mark in request.node.iter_markers("launches") for name in mark.args}
    assert said <= launched
