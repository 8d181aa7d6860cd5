"""Peak memory of tensors, real or fake, from the lifetime of every storage."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from recur_tune.data.batches import WindowBatch
from recur_tune.ops.eager_mode import EagerMode


class MemoryTracker(EagerMode):
    """Counts live bytes while it is active: tensors given to `hold`, and every storage that an operation makes.

    A view shares its storage and costs nothing. A storage is freed when the last tensor and the last graph node that
    use it are gone. Memory inside kernels is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that existed before: parameters, optimiser state, a batch."""
        for tensor in tensors:
            self._count(tensor)

    def hold_training(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: WindowBatch) -> None:
        """Count what exists before a training step: weights, buffers, optimiser state, the batch."""
        self.hold(model.parameters())
        self.hold(model.buffers())
        self.hold(value for state in optimizer.state.values() for value in state.values())
        self.hold(batch.tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        storage = getattr(tensor, "meta", tensor).untyped_storage()  # a fake tensor's is not its own
        key = storage._cdata
        size = storage.nbytes()
        known = self._sizes.get(key)
        if known is None:
            # torch keeps a storage's Python object for as long as the storage itself lives, so this is called when the
            # memory is freed, not when this wrapper goes out of scope.
            self._watched[key] = weakref.ref(storage, partial(self._forget, key))
        if known != size:  # new, or resized in place
            self._sizes[key] = size
            self.live += size - (known or 0)
            self.peak = max(self.peak, self.live)

    def _forget(self, key: int, _: Any) -> None:
        del self._watched[key]
        self.live -= self._sizes.pop(key)
