"""Floating-point operations, counted by torch's formulas.

torch's own `FlopCounterMode` tells them by module, for which it follows every module and gradient. A sum needs neither,
and takes a fraction of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from recur_tune.ops.eager_mode import EagerMode


class FlopCounter(EagerMode):
    """Counts `flops` while it is active: of products, convolutions and attention, as torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (known := _KNOWN.get(id(func))) is None:
            known = _KNOWN[id(func)] = _has_parts(func), _formula(func)
        has_parts, formula = known
        if has_parts:
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


# By an operation's id, since torch computes its hash in Python; operations stay for ever.
_KNOWN: dict[int, tuple[bool, Any]] = {}


def _formula(func: Any) -> Any:
    """An operation's formula; None where it has none."""
    return flop_registry.get(func.overloadpacket)


def _has_parts(func: Any) -> bool:
    """Whether an operation is made of others, which are counted in its place."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), torch._C.DispatchKey.CompositeImplicitAutograd)
