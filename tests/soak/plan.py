"""The plan of a soak: which fault comes when, all of it drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

MINUTE = 60.0
Where = Literal["head", "other"]


@dataclass(frozen=True)
class Draw:
    """One fault, drawn before anything has begun."""

    minute: int
    kind: str
    due: float  # seconds since the soak began; later where the search is not yet back at work
    where: Where  # the node that the driver runs on, or the other one where there is one
    hold: float  # seconds that the fault lasts, where it is one that lasts
    strength: float  # from 0 to 1: how slow, how full, how wrong
    again: bool  # whether it strikes once more while the search begins anew, where it ends a run


def plan(seed: int, kinds: Sequence[str]) -> Iterator[Draw]:
    """A fault a minute without end; in as many minutes as there are kinds, each of them comes once."""
    dice = random.Random(seed)
    minute = 1
    while True:
        for kind in dice.sample(kinds, len(kinds)):
            where: Where = "head" if dice.random() < 0.5 else "other"
            due = MINUTE * (minute - 1 + dice.random())
            yield Draw(minute, kind, due, where, dice.uniform(10.0, 40.0), dice.random(), dice.random() < 0.25)
            minute += 1
