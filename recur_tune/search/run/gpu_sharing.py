"""GPU sharing: the part of a GPU that a trial gets, and whether another trial has room."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from recur_tune.cluster.gpu_packing import PARTS, Card, takes_another
from recur_tune.search.record.state import CROWDED, TrialRecord


@dataclass(frozen=True)
class SharedCards:
    """GPUs of one kind; Ray chooses on which of them a trial runs."""

    card: Card
    count: Callable[[], int]  # GPUs in the cluster as it is now

    def parts(self, trial: TrialRecord) -> int:
        """The parts of GPUs for a trial: with one worker by its predicted memory, or a whole one where it needed more
        than its part before; with several workers a whole one for each."""
        if trial.workers > 1:
            return PARTS * trial.workers
        return PARTS if trial.cause == CROWDED else self.card.parts(trial.costs.get("peak_memory"))

    def job(self, trial: TrialRecord) -> dict[str, Any]:
        """The trial's share for Ray, and the memory share for its worker."""
        if trial.workers > 1:
            return {"gpus": 1.0}
        parts = self.parts(trial)
        return {"gpus": parts / PARTS, "tensors_share": self.card.tensors_share(parts)}

    def have_room_beside(self, live: Iterable[TrialRecord]) -> bool:
        """Whether another trial has room beside these."""
        parts: dict[bool, list[int]] = {True: [], False: []}  # by whether a trial has started
        for trial in live:
            parts[trial.state == "running"].append(self.parts(trial))
        return takes_another(self.count(), running=parts[True], waiting=parts[False])
