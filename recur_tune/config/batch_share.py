"""How the chains of a batch are shared by the workers of a trial."""

from __future__ import annotations

from recur_tune.common.errors import UserError


def check_share(batch: int, counts: tuple[int, ...], field: str = "batch") -> list[int]:
    """The numbers of workers, of these, that share a batch evenly; refuses a batch that none of them can share."""
    if even := [count for count in counts if batch % count == 0]:
        return even
    allowed = " or ".join(map(str, counts))
    how = "are fewer than" if batch < counts[0] else "cannot be shared evenly by"
    raise UserError(f"{field}: {batch} chains {how} {allowed} workers; choose a multiple of {counts[0]}.")
