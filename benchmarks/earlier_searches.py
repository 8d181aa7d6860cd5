"""Does a search learn from earlier ones, and never lose by them? Replays, as in search_quality.py.

    python benchmarks/earlier_searches.py --lcbench DIR [--seeds 5]
    python benchmarks/earlier_searches.py --tables benchmarks/recorded_spread.csv

Each task is searched alone, after the next three tasks of the list, and after the same three with their qualities
shuffled among trials or mirrored at their mean. The tasks of a table are its bases; two tables are each other's earlier
search. Earlier searches are replayed to 60 trials' tokens once, and their folders kept beside the results.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # a process for each core; before NumPy is imported

from search_replay import lcbench
from search_replay.clock import Finished
from search_replay.earlier import ALONE, EARLIER_TRIALS, KINDS, run_after
from search_replay.methods import RANDOM
from search_replay.results import Place, Search, read, run_all, tokens_of
from search_replay.scores import quartiles, tokens_to, trajectory, volume_at
from search_replay.task import Task

from recur_tune.search.record.front import hypervolume

RESULTS = Path("build") / "earlier_searches.jsonl"
TEACHERS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lcbench", type=Path, help="folder of LCBench's surrogate, as for search_quality.py")
    add("--data-sets", nargs="+", default=lcbench.FIRST_TEN, help="of LCBench, by their numbers at OpenML")
    add("--only", type=int, help="search so many of the tasks; the others teach")
    add("--tables", type=Path, nargs="*", default=[], help="recorded trials; of one table, each base is a task")
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    add("--seeds", type=int, default=5)
    add("--workers", type=int, default=1, help="trials at a time")
    add("--trials", type=int, default=15, help="each search may spend the tokens of so many full trials")
    add("--processes", type=int, default=os.cpu_count())
    add("--replay-nothing", action="store_true", help="print the tables of what the results file has")
    add("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.lcbench is not None and (problem := lcbench.refused(arguments.lcbench, arguments.data_sets)):
        parser.error(problem)
    places = _places(arguments.lcbench, arguments.data_sets, arguments.tables)
    if len(places) < 2:
        parser.error("--lcbench or --tables: give two tasks at least, one of which teaches the other.")

    replays: dict[Search, list[Finished]] = dict(read(arguments.results))
    for number, place in enumerate(places[: arguments.only]):
        others = [places[(number + step) % len(places)] for step in range(1, min(TEACHERS, len(places) - 1) + 1)]
        name = place.task.name
        chance = [(Search(name, RANDOM, arguments.workers, seed, EARLIER_TRIALS), place) for seed in range(20)]
        searches = [
            (Search(name, kind, arguments.workers, seed, arguments.trials), place)
            for seed in range(arguments.seeds) for kind in arguments.kinds
        ]  # fmt: skip
        if not arguments.replay_nothing:
            replays |= run_all(chance, arguments.results, arguments.processes)
            after = partial(run_after, others, arguments.results.parent / "earlier")
            replays |= run_all(searches, arguments.results, arguments.processes, after)
    tasks = [place.task for place in places[: arguments.only]]
    of = {one: found for one, found in replays.items() if one.workers == arguments.workers}
    for goal in ("random's last", 0.9, 0.95):
        print(f"\n{_table(tasks, of, goal, arguments.kinds, arguments.trials)}")


def _places(folder: Path | None, data_sets: Sequence[str], tables: Sequence[Path]) -> list[Place]:
    if folder is not None:
        return [Place(str(folder), data_set) for data_set in data_sets]
    if len(tables) != 1:
        return [Place(str(table)) for table in tables]
    [table] = tables
    bases = Place(str(table)).task.search["space"]["base"]
    return [Place(str(table), base=base) for base in (bases if isinstance(bases, list) else [])]


def _table(
    tasks: Sequence[Task], replays: Mapping[Search, Sequence[Finished]], goal: str | float, kinds: Sequence[str],
    trials: int,
) -> str:  # fmt: skip
    """Tokens to a goal, as a share of 60 trials', by task and kind: medians over seeds. In ratios, what is not reached
    counts as reached at the end of the replay."""
    named = goal if isinstance(goal, str) else f"{goal:.0%} of the best known"
    lines = [f"| tokens to {named} | {' | '.join(kinds)} |", "|---|" + "---|" * len(kinds)]
    ratios: dict[str, list[float]] = {kind: [] for kind in kinds}
    for task in tasks:
        best = hypervolume(task.front, task.reference)
        own = {search: trajectory(task, found) for search, found in replays.items() if search.task == task.name}
        by_chance = [volume_at(curve, math.inf) for search, curve in own.items() if search.method == RANDOM]
        wanted = quartiles(by_chance)[1] if isinstance(goal, str) else goal * best
        tokens = {
            kind: [tokens_to(curve, wanted) / tokens_of(task, EARLIER_TRIALS) for search, curve in own.items()
                   if search.method == kind and search.trials == trials]
            for kind in kinds
        }  # fmt: skip
        middle = {kind: quartiles(found)[1] for kind, found in tokens.items() if found}
        lines.append(f"| {task.name} | {' | '.join(_share(middle.get(kind), trials) for kind in kinds)} |")
        most = trials / EARLIER_TRIALS  # what was replayed: where it is not enough, a ratio is a bound
        for kind, value in middle.items() if ALONE in middle else ():
            ratios[kind].append(min(value, most) / min(middle[ALONE], most))
    lines.append(f"| median of the ratios to {ALONE} | {' | '.join(_ratio(ratios[kind]) for kind in kinds)} |")
    return "\n".join(lines)


def _share(value: float | None, trials: int) -> str:
    if value is None:
        return ""
    return f"over {trials / EARLIER_TRIALS:.0%}" if value == math.inf else f"{value:.1%}"


def _ratio(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({len(ratios)} tasks)" if ratios else ""


if __name__ == "__main__":
    main()
