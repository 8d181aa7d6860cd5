"""Fake tensors: shapes and lifetimes without data, for steps that are only simulated.

torch's own `FakeTensorMode` can trace any program and takes several times as long. Here a tensor wraps one on the meta
device and reports the CPU as its device, so that autocast and attention choose the same kernels. The output of an
operation is remembered by the shapes of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_MOST_KNOWN = 20_000  # operations; a step of a shape that is new has a few hundred that are
_on_gpu: ContextVar[bool] = ContextVar("on_gpu", default=False)
_META, _CPU = torch.device("meta"), torch.device("cpu")


class FakeTensor(torch.Tensor):
    """Wraps `meta`, a tensor with the same shape and storage size, but no memory."""

    meta: torch.Tensor

    @staticmethod
    def __new__(cls, meta: torch.Tensor) -> FakeTensor:
        """Its device is the CPU."""
        made: FakeTensor = torch.Tensor._make_wrapper_subclass(
            cls, meta.size(), strides=meta.stride(), storage_offset=meta.storage_offset(), dtype=meta.dtype, device=_CPU
        )
        made.meta = meta
        return made

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Whether it stands for a tensor on a GPU, where products are accumulated in another way."""
        return _on_gpu.get()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func}: a fake tensor can be used under FakeTensors alone.")


class FakeTensors(TorchDispatchMode):
    """Mode in which every new tensor is fake; with `on_gpu` all stand for tensors on a GPU."""

    def __init__(self, on_gpu: bool = False) -> None:
        super().__init__()
        self._on_gpu = on_gpu

    def __enter__(self) -> FakeTensors:
        self._token = _on_gpu.set(self._on_gpu)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        _on_gpu.reset(self._token)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fakes: list[FakeTensor] = []
        described = func, _described(args, fakes), _described(kwargs, fakes)
        is_known, made = described in _MADE, _MADE.get(described)
        if made is not None:
            return made(fakes)
        inputs, options = _on_meta(args), _on_meta(kwargs or {})
        if not fakes and _makes_from_nothing(func):
            options["device"] = _META
        before = [_layout(one.meta) for one in fakes]
        output = options["out"] if func is _PRODUCT_INTO else func(*inputs, **options)
        if not is_known:
            if len(_MADE) >= _MOST_KNOWN:
                _MADE.clear()
            _MADE[described] = _learn(output, fakes) if before == [_layout(one.meta) for one in fakes] else None
        return _faked(output, fakes)


# On a GPU it only writes into `out`; torch 2.11's decomposition mistakes `out_dtype` for a factor.
_PRODUCT_INTO = torch.ops.aten.addmm.dtype_out

_Makes = Callable[[list[FakeTensor]], Any]  # from an operation's tensors to its output
_MADE: dict[Any, _Makes | None] = {}  # by operation, shapes and numbers; None: it has to be run each time


def _learn(output: Any, fakes: list[FakeTensor]) -> _Makes | None:
    """How to make an output again. An output that is an input was written in place; one that shares an input's storage
    is a view, for which the operation has to run: None."""
    storages = {one.meta.untyped_storage()._cdata for one in fakes}
    kind, several = type(output), type(output) in (list, tuple)
    parts = []
    for one in output if several else (output,):
        given = next((place for place, fake in enumerate(fakes) if fake.meta is one), None)
        if given is None and (not isinstance(one, torch.Tensor) or one.untyped_storage()._cdata in storages):
            return None
        parts.append(_again(given, one))
    return (lambda fakes: kind([part(fakes) for part in parts])) if several else parts[0]


def _again(given: int | None, made: torch.Tensor) -> _Makes:
    if given is not None:
        return lambda fakes: fakes[given]
    size, stride, dtype = _layout(made)
    return lambda fakes: FakeTensor(torch.empty_strided(size, stride, dtype=dtype, device=_META))


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.dtype


def _described(value: Any, fakes: list[FakeTensor]) -> Any:
    """Key of an operation's arguments: shapes, strides, types and numbers; collects the fake tensors."""
    kind = type(value)
    if isinstance(value, FakeTensor):
        fakes.append(value)
        return value.size(), value.stride(), value.dtype
    if kind is list or kind is tuple:
        return tuple([_described(one, fakes) for one in value])
    if kind is dict:
        return tuple([(name, _described(one, fakes)) for name, one in value.items()])
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else (kind, value)


def _on_meta(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, FakeTensor):
        return value.meta
    if kind is list or kind is tuple:
        return kind([_on_meta(one) for one in value])
    if kind is dict:
        return {name: _on_meta(one) for name, one in value.items()}
    if kind is torch.device:
        return _META
    return value.to(_META) if isinstance(value, torch.Tensor) else value


def _faked(value: Any, fakes: list[FakeTensor]) -> Any:
    """An output as fake tensors; an input that is returned stays the same object."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        given = next((one for one in fakes if one.meta is value), None)
        return FakeTensor(value) if given is None else given
    return kind([_faked(one, fakes) for one in value]) if kind is list or kind is tuple else value


@cache
def _makes_from_nothing(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)
