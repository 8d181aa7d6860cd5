"""Dispatch modes that watch a model's operations, one after the other, and are quick about it."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class EagerMode(TorchDispatchMode):
    """A dispatch mode without torch's guard against Dynamo, which takes longer than many an operation; for code that is
    never compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
