"""How the chains of a batch are shared by the workers of a trial."""

from __future__ import annotations

from recur_tune.common.errors import UserError


def check_share(batch: int, workers: int) -> None:
    """Refuse a batch of which the workers would get unequal shares."""
    if batch < workers:
        raise UserError(f"batch: {batch} chains are fewer than {workers} workers; choose a multiple of {workers}.")
    if batch % workers:
        raise UserError(
            f"batch: {batch} chains cannot be shared evenly by {workers} workers; choose a multiple of {workers}."
        )
