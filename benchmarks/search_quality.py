"""Does the search work? Replay searches on tasks whose trials are all known, and print their hypervolume.

    python benchmarks/search_quality.py [--lcbench DIR] [--seeds 20] [--workers 1 8]

Every trial of `recorded_trials.csv` was trained to the full budget, with validations on the way, so a replay knows what
any scheduler would have seen. Samplers and schedulers are the real ones, without Ray. All methods draw from the space's
prior, begin with the same points and train no configuration twice.

Replays in the results file are not repeated: the program can be stopped and started again, with more seeds too. Delete
the file when a method has changed. Ten minutes on two free cores: `--seeds 8 --skip-slow`, without LCBench.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # a process for each core; before NumPy is imported

from search_replay import lcbench, outside, tables
from search_replay.methods import METHODS, SLOW
from search_replay.results import Place, Search, read, run_all

TABLE = Path(__file__).parent / "recorded_trials.csv"
RESULTS = Path("build") / "search_quality.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--table", type=Path, nargs="*", default=[TABLE], help="recorded trials, with their space in a YAML beside")
    add("--lcbench", type=Path, help="folder of LCBench's surrogate: model.onnx, config_space.json and encoding.json")
    add("--data-sets", nargs="+", default=lcbench.FIRST_TEN, help="of LCBench, by their numbers at OpenML")
    add("--seeds", type=int, default=20)
    add("--workers", type=int, nargs="+", default=[1, 8], help="trials at a time")
    add("--trials", type=int, default=60, help="random search's, which fixes the tokens for all")
    add(
        "--longer", type=float, default=1.0, help="times the tokens, of which shares stay; for the time of many workers"
    )
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME", help="; ".join(METHODS))
    add("--skip-slow", action="store_true", help=f"leave out {' and '.join(SLOW)}")
    add("--processes", type=int, default=os.cpu_count())
    add("--replay-nothing", action="store_true", help="print the tables of what the results file has")
    add("--results", type=Path, default=RESULTS, help="a line for each replay; its measures go to a CSV file beside it")
    arguments = parser.parse_args()
    for file in arguments.table:
        if not (file.is_file() and file.with_suffix(".yaml").is_file()):
            parser.error(f"--table: {file} needs a YAML file of its name beside it, and one of the two is not there.")
    if arguments.lcbench is not None and (problem := lcbench.refused(arguments.lcbench, arguments.data_sets)):
        parser.error(problem)

    places = [Place(str(table)) for table in arguments.table]
    if arguments.lcbench is not None:
        places += [Place(str(arguments.lcbench), data_set) for data_set in arguments.data_sets]
    for table in (place.task for place in places if not place.data_set):
        if missing := table.missing():
            parser.error(f"--table: {table.name} lacks {len(missing)} trials; record_trials.py goes on with it.")
    absent = outside.left_out()
    for name, package in absent.items():
        print(f"{name} is left out: {package} is not installed")
    leave_out = {*absent, *(SLOW if arguments.skip_slow else ())}
    methods = [name for name in METHODS if name in arguments.methods and name not in leave_out]
    searches = [
        (Search(place.task.name, method, workers, seed, arguments.trials, arguments.longer), place)
        for seed in range(arguments.seeds) for place in places for workers in arguments.workers for method in methods
    ]  # fmt: skip
    if arguments.replay_nothing:
        wanted = arguments.trials, arguments.longer
        replays = {one: found for one, found in read(arguments.results) if (one.trials, one.longer) == wanted}
    else:
        replays = run_all(searches, arguments.results, arguments.processes)

    print_tables(arguments, places, methods, replays)


def print_tables(
    arguments: argparse.Namespace, places: Sequence[Place], methods: Sequence[str], replays: tables.Replays
) -> None:
    """As Markdown; all measures go to a CSV file."""
    tasks = [place.task for place in places]
    scored = {search: found for task in tasks for search, found in tables.score_all(task, replays).items()}
    tables.write_csv(arguments.results.with_suffix(".csv"), scored)
    for task in tasks:
        of_task = {search: found for search, found in scored.items() if search.task == task.name}
        for workers in arguments.workers:
            print(f"\n{tables.table(task, workers, of_task, methods)}")
    surrogates = [place.task for place in places if place.data_set]
    for workers in arguments.workers if surrogates else ():
        print(f"\nLCBench, {workers} at a time, medians")
        for head in (tables.QUARTER, "to random's last"):
            print(f"\n{tables.over_tasks(surrogates, workers, scored, methods, head)}")
        print()
        for method in methods:
            if method.startswith("ours"):
                print(tables.verdict(surrogates, workers, scored, methods, method))


if __name__ == "__main__":
    main()
