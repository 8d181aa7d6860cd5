"""Tables of replays, as Markdown and as CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from recur_tune.search.record.front import hypervolume

from .clock import Finished
from .methods import RANDOM
from .results import Search, tokens_of
from .scores import SHARES, quartiles, scores, trajectory, volume_at
from .task import Task

Replays = Mapping[Search, Sequence[Finished]]
Scores = dict[Search, dict[str, float]]
QUARTER = f"{SHARES[1]:.0%}"


def score_all(task: Task, replays: Replays) -> Scores:
    """The measures of every replay of a task; the goal is random search's final hypervolume, one trial at a time."""
    own = {search: finished for search, finished in replays.items() if search.task == task.name}
    fewest = min((search.workers for search in own), default=1)
    by_chance = [
        volume_at(trajectory(task, finished), tokens_of(task, search.trials))
        for search, finished in own.items() if search.method == RANDOM and search.workers == fewest
    ]  # fmt: skip
    goal = quartiles(by_chance)[1] if by_chance else math.inf
    return {search: scores(task, finished, tokens_of(task, search.trials), goal) for search, finished in own.items()}


def table(task: Task, workers: int, scored: Scores, methods: Sequence[str]) -> str:
    """A task's methods: median and quartiles over the seeds."""
    heads = ["to random's last", "its time", *(f"{share:.0%}" for share in SHARES), "front", "cheap third"]
    best = hypervolume(task.front, task.reference)
    lines = [
        f"{task.name}, {workers} at a time; the best known front has {len(task.front)} points and {best:.4f}", "",
        f"| method (seeds) | {' | '.join(heads)} |", "|---|" + "---|" * len(heads),
    ]  # fmt: skip
    for method in methods:
        of_it = [found for search, found in scored.items() if search.method == method and search.workers == workers]
        if of_it:
            cells = [_cell(head, quartiles([found[head] for found in of_it])) for head in heads]
            lines.append(f"| {method} ({len(of_it)}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(head: str, values: tuple[float, float, float]) -> str:
    form = "{:.4f}".format if head[-1] == "%" else "{:.2f}".format if head == "its time" else _share
    low, median, high = map(form, values)
    return median if low == high else f"{median} ({low} to {high})"


def _share(value: float) -> str:
    return "never" if value == math.inf else f"{value:.0%}"


def over_tasks(tasks: Sequence[Task], workers: int, scored: Scores, methods: Sequence[str], head: str) -> str:
    """One measure, the median over the seeds, with a task in each column."""
    lines = [f"| {head} | {' | '.join(task.name.split()[-1] for task in tasks)} |", "|---|" + "---|" * len(tasks)]
    for method in methods:
        medians = [median(task, method, workers, scored, head) for task in tasks]
        if any(value is not None for value in medians):
            cells = ["" if value is None else _cell(head, (value,) * 3) for value in medians]
            lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def median(task: Task, method: str, workers: int, scored: Scores, head: str) -> float | None:
    """Over the seeds; None where none was run."""
    values = [
        found[head] for search, found in scored.items()
        if (search.task, search.method, search.workers) == (task.name, method, workers)
    ]  # fmt: skip
    return quartiles(values)[1] if values else None


def verdict(tasks: Sequence[Task], workers: int, scored: Scores, methods: Sequence[str], ours: str) -> str:
    """On how many tasks a method of ours is ahead of every peer at a quarter of the tokens, and behind random."""
    peers = [method for method in methods if not method.startswith("ours")]
    ahead = behind = 0
    for task in tasks:
        own = median(task, ours, workers, scored, QUARTER)
        theirs = {peer: median(task, peer, workers, scored, QUARTER) for peer in peers}
        known = [value for value in theirs.values() if value is not None]
        by_chance = theirs.get(RANDOM)
        ahead += own is not None and bool(known) and own > max(known)
        behind += own is not None and by_chance is not None and own < by_chance
    return f"{ours}, at {QUARTER}: ahead of every peer on {ahead} of {len(tasks)}, behind random on {behind}"


def write_csv(file: Path, scored: Scores) -> None:
    """A line for each replay and its measures."""
    names = list(next(iter(scored.values())))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow([*Search.__dataclass_fields__, *names])
        for search, found in scored.items():
            writer.writerow([*(getattr(search, name) for name in Search.__dataclass_fields__), *found.values()])
