"""Dispatch modes that watch a model's operations, one after the other, and are quick about it."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class EagerMode(TorchDispatchMode):
    """A mode under which nothing is compiled: to skip torch's compiler takes longer than many an operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
