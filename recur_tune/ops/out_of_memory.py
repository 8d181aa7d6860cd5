"""Out of memory on a GPU, by whatever part of the stack says it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recur_tune.common.errors import UserError

_WORDS = ("CUDA error: out of memory", "STATUS_ALLOC_FAILED")  # of kernels and CUDA graphs; of cuBLAS


def is_out_of_memory(error: BaseException) -> bool:
    """Torch's own exception is the allocator's alone; others are told by their words."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)


@contextmanager
def out_of_memory_as_user_error(sentence: str) -> Iterator[None]:
    """One sentence in place of a traceback."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(sentence) from error
