"""How kernels run here: compiled on a GPU, or else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import replace as replace_fields
from typing import Any

import pytest
import torch

from recur_tune.ops.triton.jit import kernel

# Triton's interpreter takes minutes for these.
collect_ignore = ["test_real_sizes.py"] if os.environ.get("TRITON_INTERPRET") == "1" else []


@pytest.fixture(autouse=True, scope="session")
def _quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without work whose result it has already or throws away: it replaces all of the language
    for every function that a kernel calls, prepares checks of overflows that only its debug mode makes, and writes a
    table of NumPy's types and describes a block's type for every operation."""
    if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
        yield
        return
    from triton.language import core
    from triton.runtime import interpreter

    class Replaced:
        """The language, replaced until the tests end."""

        def restore(self) -> None:
            """After a launch, that is: too early."""

    replace = interpreter._patch_lang
    scopes: dict[int, Any] = {}  # by the module of a function, which sees the language under one name or another

    def replace_once(function: Any) -> Replaced:
        module = id(function.__globals__)
        if module not in scopes:
            scopes[module] = replace(function)
        return Replaced()

    kind_of, kinds = interpreter._get_np_dtype, dict[str, Any]()

    def known_kind(of: Any) -> Any:
        name = of.scalar.name
        if name not in kinds:
            kinds[name] = kind_of(of)
        return kinds[name]

    make_type, types = core.block_type.__init__, dict[Any, dict[str, Any]]()

    def known_type(self: Any, element_ty: Any, shape: Any) -> None:
        described = (element_ty.name, *map(core._unwrap_if_constexpr, shape))
        if described not in types:
            make_type(self, element_ty, shape)
            types[described] = vars(self)
        vars(self).update(types[described])

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(interpreter, "_patch_lang", replace_once)
        changed.setattr(interpreter, "_get_np_dtype", known_kind)
        changed.setattr(core.block_type, "__init__", known_type)
        changed.setattr(builder, "options", replace_fields(builder.options, sanitize_overflow=False))
        yield
    for scope in reversed(scopes.values()):
        scope.restore()


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
