"""Train every configuration of a grid of quickstart-size trials and write what each validation said.

    python benchmarks/record_trials.py benchmarks/recorded_trials.csv [--processes 16]

The table that `search_quality.py` replays. It can be stopped and started again: rows that are there are not made twice.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # one process per core; before torch is imported

# The slowest-changing first: whoever stops early still has a whole grid of fewer learning rates.
GRID: dict[str, list[Any]] = {
    "learning_rate": [4e-3, 1e-3],
    "recurrence": ["none", "pooled"],
    "window": [16, 32, 64, 128],
    "overlap_of_window": [0.0, 0.25, 0.5],
    "windows": [2, 4],
    "l_ins": [1, 3],
    "width": [32, 128],
}
OF_THE_RECURRENCE = ("l_ins", "width")
TOKENS_READ_AT_ONCE = 512  # batch times window, so that no window size gets more steps than another
FIXED = {
    "corpus": "stdlib", "depth": 2, "warmup_steps": 5, "checkpointing": "none", "validation_tokens": 12_000,
}  # fmt: skip
TOKENS, FIRST_RUNG = 80_000, 20_000
COLUMNS = [*GRID, "tokens", "token_perplexity", "flops_per_token", "peak_memory"]


def configurations() -> list[dict[str, Any]]:
    """Every point of the grid; a plain model has no recurrence to configure."""
    points = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    for point in points:
        if point["recurrence"] == "none":
            point.update(dict.fromkeys(OF_THE_RECURRENCE, ""))
    return list({tuple(point.values()): point for point in points}.values())


def train(job: tuple[dict[str, Any], str]) -> list[dict[str, Any]]:
    """One row per validation."""
    import torch

    from recur_tune.cost.estimate import estimate
    from recur_tune.spec import TrialConfig
    from recur_tune.trial.setup import set_up

    torch.set_num_threads(1)
    point, base = job
    fields = {name: value for name, value in point.items() if value != ""}
    fields["overlap"] = int(fields.pop("overlap_of_window") * fields["window"])
    fields["batch"] = TOKENS_READ_AT_ONCE // fields["window"]
    config = TrialConfig(base=base, tokens=TOKENS, validate_every=FIRST_RUNG, **FIXED, **fields)
    trainer, _ = set_up(config, torch.device("cpu"))
    cost = estimate(config, trainer.model.config)
    return [
        {**point, "tokens": report.tokens, "token_perplexity": round(report.validation["token_perplexity"], 5),
         "flops_per_token": round(cost.flops_per_token), "peak_memory": cost.peak_memory}
        for report in trainer.run() if report.validation is not None
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--at-most", type=int, help="configurations to train now")
    arguments = parser.parse_args()
    from recur_tune.trial.base import pretrained_base, pretraining_of

    base = str(pretrained_base(pretraining_of("tiny", FIXED["corpus"], None)))
    done = set()
    if arguments.table.exists():
        with arguments.table.open() as file:
            done = {tuple(row[name] for name in GRID) for row in csv.DictReader(file)}
    todo = [point for point in configurations() if tuple(map(str, point.values())) not in done][: arguments.at_most]
    print(f"{len(done)} configurations recorded, {len(todo)} to go", flush=True)
    started = time.monotonic()
    # Spawned, because a forked torch may inherit locked thread pools.
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool, arguments.table.open("a") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not done:
            writer.writeheader()
        for number, rows in enumerate(pool.imap_unordered(train, [(point, base) for point in todo]), start=1):
            writer.writerows(rows)
            file.flush()
            if number % 20 == 0:
                print(f"{number} of {len(todo)}, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
