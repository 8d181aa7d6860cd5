"""Bin packing of trials onto GPUs: a trial asks for as many eighths of a card as its predicted memory needs.

Eighths rather than bytes, since Ray Tune gives an actor to the next trial only where both ask for the same: among few
sizes that happens often, and a new process has torch to load first.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from recur_tune.common.units import format_size

PARTS = 8  # of a card, and so the most trials on it; eight short ones have nearly filled an H200
# Seven processes on an H200 have held in the median what was predicted for them and CUDA's own; a quarter more is for
# what torch keeps and does not use, which it gives back at its bound.
MARGIN = 1.25
CONTEXT = 2**30  # bytes that CUDA takes for a process beside its tensors

_SECONDS_TO_TELL = 60.0


@dataclass(frozen=True)
class Card:
    """A GPU that trials share; the smallest, where a cluster has several kinds."""

    memory: int

    def parts(self, predicted: float | None) -> int:
        """Eighths for a trial of so many predicted bytes; all of them where nobody knows, or they hardly suffice."""
        if predicted is None:
            return PARTS
        return min(PARTS, max(1, math.ceil((predicted * MARGIN + CONTEXT) * PARTS / self.memory)))

    def tensors_share(self, parts: int) -> float | None:
        """What torch may take of the card in a process that has so many parts; None where it has the card alone."""
        return None if parts == PARTS else parts / PARTS - CONTEXT / self.memory

    def why(self, at_most: int) -> str:
        """How many trials share a card and why, in a line."""
        fits = (self.memory / PARTS - CONTEXT) / MARGIN
        held = f"{format_size(fits)} of predicted memory" if fits > 0 else "no trial"
        cores = "" if at_most >= PARTS else ", for want of cores"
        return (
            f"gpus auto: up to {min(at_most, PARTS)} trials share a card of {format_size(self.memory)}{cores}. An "
            f"eighth holds {held}, a quarter of that again and {format_size(CONTEXT)} for CUDA; larger ones take more."
        )


def takes_another(cards: int, running: Iterable[int], waiting: Iterable[int]) -> bool:
    """Whether everyone who waits is sure of a place on one of the cards, given what all take of them.

    Whoever asks for another only then lets nobody past one that does not fit yet: cards empty until it does. One of p
    parts finds no place only where every card has fewer than p left.
    """
    waiting = list(waiting)
    load = sum(running) + sum(waiting)
    return all(load - parts < cards * (PARTS - parts + 1) for parts in waiting)


def smallest_card(nodes: Iterable[dict[str, Any]]) -> Card | None:
    """Of the cluster's nodes, as Ray lists them, by NVIDIA's own tool on each; None where one of them does not know."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(bytes_of_cards)
    having = [node["NodeID"] for node in nodes if node["Alive"] and node["Resources"].get("GPU")]
    answers = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in having
    ]
    try:
        told: list[list[int]] = ray.get(answers, timeout=_SECONDS_TO_TELL)
    except ray.exceptions.RayError:  # a node that is leaving, or too busy to say
        return None
    return Card(min(min(cards) for cards in told)) if told and all(told) else None


def bytes_of_cards() -> list[int]:
    """On a node: each card's memory; none where one is not whole (MIG), since the tool tells the whole one's."""
    words = ["nvidia-smi", "--query-gpu=memory.total,mig.mode.current", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS_TO_TELL / 2, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    cards = [line.split(", ") for line in said.splitlines()]
    if not all(len(card) == 2 and card[0].isdecimal() and card[1] != "Enabled" for card in cards):
        return []
    return [int(mebibytes) * 2**20 for mebibytes, _ in cards]
