"""Reading the next window of every row of a batch, whichever task scores it, with the state that it is given."""

from __future__ import annotations

import numpy as np
import torch

from recur_tune.data.batches import WindowBatch
from recur_tune.models import State, Windowed
from recur_tune.tasks.seam import GivenState


def read_on(
    model: Windowed,
    batch: WindowBatch,
    table_B5: np.ndarray,
    state: State | None,
    overlap: int,
    given: GivenState,
    rows_each: int = 1,
) -> tuple[torch.Tensor, State | None]:
    """The next window of every row of the batch: its last layer, and the state that the one behind it is given. So many
    rows read the same windows, as the columns of a series do."""
    start = batch.starts[0]
    reading = model.read(
        batch.inputs_WBT[0],
        state=None if start == "all" or given == "none" else state,
        fresh_B=batch.fresh_WB[0] if start == "some" else None,
        overlap=overlap,
    )
    if given != "other":
        return reading.top_BTK, reading.state
    return reading.top_BTK, handed_round(reading.state, state, table_B5, rows_each)


def handed_round(left: State | None, before: State | None, table_B5: np.ndarray, by: int = 1) -> State | None:
    """Every row gets the state of the one so many before it; one without a window left passes on what it last got."""
    if left is None or before is None:
        return None if left is None else tuple(one.roll(by, 0) for one in left)
    reads_B = torch.from_numpy(table_B5[:, 4] >= 0).to(left[0].device)
    return tuple(
        torch.where(reads_B.view(-1, *[1] * (new.ndim - 1)), new, old.roll(-by, 0)).roll(by, 0)
        for new, old in zip(left, before, strict=True)
    )
