"""Trials that share GPUs, as a search sees them: what each gets of a card, and whether another may be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from recur_tune.search.record.state import CROWDED, TrialRecord
from recur_tune.sites.ray.gpu_packing import PARTS, Card, takes_another


@dataclass(frozen=True)
class SharedCards:
    """Cards of one kind; on which of them a trial runs is Ray's choice."""

    card: Card
    count: Callable[[], int]  # of the cluster as it is now

    def parts(self, trial: TrialRecord) -> int:
        """Of a card, by the trial's predicted memory. One that needed more than it was given has a card to itself."""
        return PARTS if trial.cause == CROWDED else self.card.parts(trial.costs.get("peak_memory"))

    def job(self, trial: TrialRecord) -> dict[str, Any]:
        """What Ray and the worker are told of it."""
        parts = self.parts(trial)
        return {"gpus": parts / PARTS, "tensors_share": self.card.tensors_share(parts)}

    def have_room_beside(self, live: Iterable[TrialRecord]) -> bool:
        """Whether one more may be asked for."""
        parts: dict[bool, list[int]] = {True: [], False: []}  # by whether it has started
        for trial in live:
            parts[trial.state == "running"].append(self.parts(trial))
        return takes_another(self.count(), running=parts[True], waiting=parts[False])
