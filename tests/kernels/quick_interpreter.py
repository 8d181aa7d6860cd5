"""Triton's interpreter without work whose result it has already or throws away: tests take a third of the time.

It replaces all of the language for every function that a kernel calls, prepares checks of overflows that only its debug
mode makes, and writes a table of NumPy's types and describes a block's type for every operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as replace_fields
from typing import Any

import pytest


@contextmanager
def quick_interpreter() -> Iterator[None]:
    """Each of these once, until the end."""
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
            types[described] = {**vars(self)}
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
