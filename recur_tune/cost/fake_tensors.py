"""Fake tensors: shapes and lifetimes without data, for steps that are only simulated.

torch's own `FakeTensorMode` can trace any program and takes several times as long. Here a tensor wraps one on the meta
device and reports the CPU as its device, so that autocast and attention choose the same kernels. The output of an
operation is remembered by the layouts of its inputs.

A step of a model with many layers has tens of thousands of operations, so what is done for each of them counts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from itertools import count
from typing import Any

import torch

from recur_tune.ops.eager_mode import EagerMode

_MOST_KNOWN = 20_000  # operations; a step of a shape that is new has a few hundred that are
_on_gpu: ContextVar[bool] = ContextVar("on_gpu", default=False)
_META, _CPU = torch.device("meta"), torch.device("cpu")
# Size, stride, type, and place in the storage.
_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int | torch.SymInt]


class FakeTensor(torch.Tensor):
    """Wraps `meta`, a tensor with the same shape and storage size, but no memory; `number` is its layout's."""

    meta: torch.Tensor
    number: int

    @staticmethod
    def __new__(cls, meta: torch.Tensor) -> FakeTensor:
        """Its device is the CPU."""
        layout = _layout(meta)
        return cls.of(meta, layout, _number(layout))

    @staticmethod
    def of(meta: torch.Tensor, layout: _Layout, number: int) -> FakeTensor:
        """The same of a layout that is known."""
        size, stride, dtype, place = layout
        made: FakeTensor = torch.Tensor._make_wrapper_subclass(
            FakeTensor, size, strides=stride, storage_offset=place, dtype=dtype, device=_CPU
        )
        made.meta, made.number = meta, number
        return made

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Whether it stands for a tensor on a GPU, where products are accumulated in another way."""
        return _on_gpu.get()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func}: a fake tensor can be used under FakeTensors alone.")


class FakeTensors(EagerMode):
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
        # By its id, since torch computes an operation's hash in Python; operations stay for ever.
        described = id(func), _described(args, fakes), _described(kwargs, fakes) if kwargs else None
        made = _MADE.get(described)
        if made is not None:
            return made(fakes)
        inputs, options = _on_meta(args), _on_meta(kwargs or {})
        if not fakes and _makes_from_nothing(func):
            options["device"] = _META
        is_known, before = described in _MADE, [_layout(one.meta) for one in fakes]
        output = options["out"] if func is _PRODUCT_INTO else func(*inputs, **options)
        if not is_known:
            if len(_MADE) >= _MOST_KNOWN:
                _MADE.clear()
                _NUMBERS.clear()
            _MADE[described] = _learn(output, fakes) if before == [_layout(one.meta) for one in fakes] else None
        return _faked(output, fakes)


# On a GPU it only writes into `out`; torch 2.11's decomposition mistakes `out_dtype` for a factor.
_PRODUCT_INTO = torch.ops.aten.addmm.dtype_out

_Makes = Callable[[list[FakeTensor]], Any]  # from an operation's tensors to its output
_MADE: dict[Any, _Makes | None] = {}  # by operation, layouts and numbers; None: it has to be run each time
_NUMBERS: dict[_Layout, int] = {}  # of layouts, which are compared and hashed more slowly; none is given twice
_next_number = count(1)


def _number(layout: _Layout) -> int:
    return _NUMBERS.get(layout) or _NUMBERS.setdefault(layout, next(_next_number))


def _learn(output: Any, fakes: list[FakeTensor]) -> _Makes | None:
    """How to make an output again. An output that is an input was written in place; one that shares an input's storage
    is a view of it. None where the operation has to run."""
    storages = [one.meta.untyped_storage()._cdata for one in fakes]
    kind, several = type(output), type(output) in (list, tuple)
    parts = []
    for one in output if several else (output,):
        if not isinstance(one, torch.Tensor):
            return None
        given = next((place for place, fake in enumerate(fakes) if fake.meta is one), None)
        sharing = [place for place, storage in enumerate(storages) if storage == one.untyped_storage()._cdata]
        if given is None and sharing and (len(sharing) > 1 or fakes[sharing[0]].meta.dtype != one.dtype):
            return None  # of which input it is a view is not known, or it reads other types from the same bytes
        parts.append(_again(given, sharing, _layout(one)))
    return (lambda fakes: kind([part(fakes) for part in parts])) if several else parts[0]


def _again(given: int | None, sharing: list[int], layout: _Layout) -> _Makes:
    """Makes an output that is a given input, a view of the one that shares its storage, or new."""
    size, stride, dtype, place = layout
    of, number = FakeTensor.of, _number(layout)
    if given is not None:
        return lambda fakes: fakes[given]
    if sharing:
        [viewed] = sharing
        return lambda fakes: of(fakes[viewed].meta.as_strided(size, stride, place), layout, number)
    return lambda fakes: of(torch.empty_strided(size, stride, dtype=dtype, device=_META), layout, number)


def _layout(tensor: torch.Tensor) -> _Layout:
    return tensor.size(), tensor.stride(), tensor.dtype, tensor.storage_offset()


def _described(value: Any, fakes: list[FakeTensor]) -> Any:
    """Key of an operation's arguments: numbers of layouts, and other values with their types; collects the fake
    tensors."""
    kind = type(value)
    if kind is FakeTensor:
        fakes.append(value)
        return value.number
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
