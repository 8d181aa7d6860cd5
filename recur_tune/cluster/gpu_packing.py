"""Bin packing of trials onto GPUs: a trial requests as many eighths of a GPU as its predicted memory needs.

Eighths and not bytes, since Ray Tune reuses an actor only for a trial with the same request. With few sizes that is
frequent, and it saves loading torch.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from recur_tune.common.units import format_size

PARTS = 8  # of a GPU, and so the most trials on it; eight short ones nearly fill an H200
# Seven processes on an H200 held, in the median, the predicted memory and CUDA's context. A quarter more is for torch's
# cache, which torch frees at its limit.
MARGIN = 1.25
CONTEXT = 2**30  # bytes of CUDA's context in a process
_ERROR = 1.05  # of the predicted memory of a step

_SECONDS_TO_TELL = 60.0


@dataclass(frozen=True)
class Card:
    """A GPU that trials share; the smallest, where a cluster has several kinds."""

    memory: int

    def parts(self, predicted: float | None) -> int:
        """Eighths for a trial of so many predicted bytes; all of them where that is not known."""
        if predicted is None:
            return PARTS
        return min(PARTS, max(1, math.ceil((predicted * MARGIN + CONTEXT) * PARTS / self.memory)))

    def worker_memory(self, gpus: float) -> int:
        """The largest predicted memory that fits a worker with so much of a GPU."""
        return int((self.memory * min(gpus, 1.0) - CONTEXT) / _ERROR)

    def tensors_share(self, parts: int) -> float | None:
        """Share of the GPU's memory that torch may use in a process with so many parts; None where it has the GPU
        alone."""
        return None if parts == PARTS else parts / PARTS - CONTEXT / self.memory

    def why(self, at_most: int) -> str:
        """How many trials share a GPU and why, in a line."""
        fits = (self.memory / PARTS - CONTEXT) / MARGIN
        held = f"{format_size(fits)} of predicted memory" if fits > 0 else "no trial"
        cores = "" if at_most >= PARTS else ", for want of cores"
        return (
            f"gpus auto: up to {min(at_most, PARTS)} trials share a card of {format_size(self.memory)}{cores}. An "
            f"eighth holds {held}, a quarter of that again and {format_size(CONTEXT)} for CUDA; larger ones take more."
        )


def takes_another(cards: int, running: Iterable[int], waiting: Iterable[int]) -> bool:
    """Whether every waiting trial is sure to fit on the cards, given the parts that all trials take. One with several
    workers takes all parts of as many cards.

    Proposing another trial only then prevents starvation: a large one that does not fit yet is not overtaken.
    """
    waiting = list(waiting)
    taken = [*running, *waiting]
    return all(_is_sure_to_fit(parts, cards, taken) for parts in waiting)


def _is_sure_to_fit(parts: int, cards: int, taken: list[int]) -> bool:
    others = list(taken)
    others.remove(parts)
    if parts > PARTS:  # every other trial may touch cards of its own
        return cards - sum(math.ceil(one / PARTS) for one in others) >= parts // PARTS
    # It does not fit only where each card without several workers has fewer parts left.
    shared = cards - sum(one // PARTS for one in others if one > PARTS)
    return sum(one for one in others if one <= PARTS) < shared * (PARTS - parts + 1)


def smallest_card(nodes: Iterable[dict[str, Any]]) -> Card | None:
    """The smallest GPU of the cluster's nodes, by nvidia-smi on each; None where a node does not know."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(bytes_of_cards)
    having = [node["NodeID"] for node in nodes if node["Alive"] and node["Resources"].get("GPU")]
    answers = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in having
    ]
    try:
        told: list[list[int]] = ray.get(answers, timeout=_SECONDS_TO_TELL)
    except ray.exceptions.RayError:  # a node that leaves or is too busy
        return None
    return Card(min(min(cards) for cards in told)) if told and all(told) else None


def bytes_of_cards() -> list[int]:
    """Memory of each GPU of this node; none where one is split (MIG), since nvidia-smi reports the whole GPU."""
    words = ["nvidia-smi", "--query-gpu=memory.total,mig.mode.current", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS_TO_TELL / 2, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    cards = [line.split(", ") for line in said.splitlines()]
    if not all(len(card) == 2 and card[0].isdecimal() and card[1] != "Enabled" for card in cards):
        return []
    return [int(mebibytes) * 2**20 for mebibytes, _ in cards]
