"""What the tests of reports share: searches that were never run, written as their logs would have been."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from recur_tune.search.record.directory import EVENTS, SearchDirectory
from recur_tune.search.record.front import front
from recur_tune.search.record.state import Event, replay
from tests.search.record import search

SPACE = {
    "base": "tiny", "corpus": "stdlib", "window": {16: {"batch": 32}, 32: {"batch": 16}, 64: {"batch": 8}},
    "overlap": {"from": 0, "to": 0.5, "step": 0.125, "of": "window"},
    "recurrence": {"none": None, "pooled": {"l_ins": [1, 2, "all"], "width": {"from": 16, "to": 256, "log": True}}},
    "learning_rate": {"from": 1e-4, "to": 1e-2, "log": True},
}  # fmt: skip
RUNGS = (1000, 2000, 4000)
REFERENCE = {"perplexity": 100.0, "flops_per_token": 1e6, "peak_memory": 2.0**27}


def make(folder: Path, name: str = "books", events: list[Event] | None = None, **fields: Any) -> SearchDirectory:
    """A search with these lines in its log."""
    spec = {"space": SPACE, "budget": {"tokens": 4000, "trials": 500, "rungs": 3}, **fields}
    directory = SearchDirectory.create(folder, name, search(**spec))
    (directory.path / EVENTS).write_text("".join(f"{json.dumps(event)}\n" for event in events or []))
    return directory


def params_of(recurrence: str = "pooled", window: int = 32, overlap: int = 0, rate: float = 1e-3, **more: Any) -> Any:
    """What the sampler would have decided."""
    memory = {"l_ins": 2, "width": 100} if recurrence == "pooled" else {}
    fixed = {"window": window, "batch": 512 // window, "overlap": overlap, "learning_rate": rate}
    return {"recurrence": recurrence, **memory, **fixed, **more}


def begun(number: int, time: float, params: Any, flops: float, memory: float, role: str = "") -> list[Event]:
    """A trial is proposed and taken by a worker."""
    costs = {"flops_per_token": flops, "peak_memory": memory, "parameters": 1e5, "training_flops_per_token": 4 * flops}
    return [
        {"time": time, "kind": "trial", "trial": number, "params": params, "costs": costs, "role": role},
        {"time": time, "kind": "running", "trial": number},
    ]


def validated(number: int, time: float, tokens: int, perplexity: float, state: str = "", worker: str = "n1:1") -> Event:
    """A trial reports a validation, which may be its last."""
    positive = math.isfinite(perplexity) and perplexity > 0
    bits = math.log2(perplexity) if positive else math.nan
    metrics = {"perplexity": perplexity, "token_perplexity": perplexity / 3, "bits_per_byte": bits}
    ending = {"state": state} if state else {}
    return {
        "time": time, "kind": "report", "trial": number, "tokens": tokens, "loss": 2.5, "validation": metrics,
        "worker": worker, **ending,
    }  # fmt: skip


def opening(reference: dict[str, float] | None = None) -> list[Event]:
    """A search starts and fixes its reference."""
    return [
        {"time": 100.0, "kind": "search", "status": "started"},
        {"time": 100.0, "kind": "reference", "values": REFERENCE if reference is None else reference},
    ]


def few() -> list[Event]:
    """Six trials on two workers: a front of three, one beaten, one pruned at the first rung, one failed."""
    return [
        *opening(),
        *begun(0, 100, params_of("none", 64), 4e5, 2.0**25, "baseline"),
        *begun(1, 100, params_of("pooled", 64), 4e5, 2.0**26, "paper"),
        validated(0, 105, 1000, 90.0), validated(1, 105, 1000, 85.0, worker="n1:2"),
        validated(0, 110, 4000, 60.0, "complete"),
        *begun(2, 110, params_of("none", 16), 2e5, 2.0**24),
        validated(1, 112, 4000, 50.0, "complete", "n1:2"),
        *begun(3, 112, params_of("pooled", 32, 8), 6e5, 2.0**26),
        validated(2, 114, 1000, 80.0), validated(2, 118, 4000, 70.0, "complete"),
        *begun(4, 118, params_of("pooled", 16), 3e5, 2.0**24),
        validated(3, 120, 4000, 55.0, "complete", "n1:2"),
        validated(4, 122, 1000, 95.0),
        {"time": 122.0, "kind": "end", "trial": 4, "state": "pruned", "reason": "others were better at its cost"},
        *begun(5, 122, params_of("pooled", 16, 4), 4e5, 2.0**24),
        {"time": 124.0, "kind": "end", "trial": 5, "state": "failed", "reason": "its worker <died>"},
        {"time": 130.0, "kind": "search", "status": "finished"},
    ]  # fmt: skip


def many(count: int) -> list[Event]:
    """A long search: four workers on two hosts, half of the trials pruned on their way."""
    dice = random.Random(0)
    events, free = opening(), {f"n{1 + worker // 2}:{worker}": 100.0 for worker in range(4)}
    for number in range(count):
        worker = min(free, key=lambda one: free[one])
        window, kind = dice.choice([16, 32, 64]), dice.choice(["none", "pooled"])
        overlap = math.floor(dice.choice([0, 0.125, 0.25, 0.375, 0.5]) * window)
        rate = 10 ** dice.uniform(-4, -2)
        params = params_of(
            kind, window, overlap, rate, **({"width": dice.randint(16, 256)} if kind == "pooled" else {})
        )
        flops, memory = 3e5 * window / (window - overlap) + 1e3 * window, 2.0**20 * dice.uniform(16, 100)
        events += begun(number, free[worker], params, flops, memory, "baseline" if number == 0 else "")
        quality = 60 + 8 * abs(math.log10(rate) + 3) - 20 * overlap / window - 8 * (kind == "pooled") + dice.gauss(0, 2)
        last = dice.choice([*RUNGS, RUNGS[-1]])
        for tokens in RUNGS[: RUNGS.index(last) + 1]:
            free[worker] += dice.uniform(20, 60)
            state = "" if tokens < last else "complete" if last == RUNGS[-1] else "pruned"
            events.append(validated(number, free[worker], tokens, quality + 8000 / tokens, state, worker))
    return sorted(events, key=lambda event: event["time"])


def confirmed(events: list[Event], most: int = 6) -> list[Event]:
    """A search whose best trials were repeated with three other seeds each."""
    state = replay(events)
    now = events[-1]["time"]
    found = list(events)
    for at, point in enumerate(front(state.trials.values(), ["perplexity", "flops_per_token", "peak_memory"])[:most]):
        for seed in range(3):
            own, now = 1000 + 3 * at + seed, now + 10
            again = {"trial": own, "repeats": point.number, "seed": 10 + seed, "split": "test"}
            quality = (point.value("perplexity") or math.nan) + 1.5 * (seed - 1) + at % 3
            found += [
                {"time": now - 10, "kind": "trial", "params": point.params, "costs": point.costs, **again},
                {"time": now - 10, "kind": "running", "trial": own},
                {"time": now, "kind": "report", "trial": own, "tokens": 1, "state": "complete", "worker": f"n1:{own}",
                 "scores": {"test": {"perplexity": quality}}},
            ]  # fmt: skip
    return found
