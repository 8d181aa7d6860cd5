"""Time to a trial's first steps: the first trial of a shape, later ones, and one of another shape.

    python benchmarks/first_step.py
    python benchmarks/first_step.py --base mini --window 300 --bptt-windows 10 --batch 16

Every trial has its own process, as on a cluster. All load at the same time, and their steps run one trial after the
other. They share one folder of compiled kernels, as the trials of a node do. By the fifth step every kernel is compiled
and the CUDA graph is captured. Without a GPU all lines are plain steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

STEPS = 5
GO = "go\n"  # what a loaded trial waits for
TRIALS: list[tuple[str, dict[str, Any]]] = [
    ("no fused kernels", {"fused_kernels": False}),
    ("CUDA graph, the first of its shape", {}),
    ("the same shape again", {"seed": 1, "learning_rate": 1e-4}),
    ("another width", {"width": 96}),
    ("another layer", {"l_ins": 1}),
]


def main() -> None:
    """Print the table; with `--trial`, run that trial."""
    if len(sys.argv) == 3 and sys.argv[1] == "--trial":
        print(json.dumps(seconds_of(json.loads(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="tiny", help="a preset or a published shape; weights are random")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--bptt-windows", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    arguments = parser.parse_args()
    # Tokens are bytes: every vocabulary has 256 tokens.
    shape = vars(arguments) | {
        "corpus": "stdlib",
        "tokenizer": "bytes",
        "cuda_graph": True,
        "fused_kernels": True,
        "tokens": 1_000_000_000,
    }
    print(f"{'trial':<34}{'first step':>12}{f'{STEPS} steps':>10}{'a step after that':>19}", flush=True)
    with tempfile.TemporaryDirectory() as weights, tempfile.TemporaryDirectory() as compiled:
        shape["base"] = folder_of(arguments.base, Path(weights))
        trials = [
            subprocess.Popen(
                [sys.executable, __file__, "--trial", json.dumps(shape | fields)],
                env=os.environ | {"TRITON_CACHE_DIR": compiled},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for _, fields in TRIALS
        ]  # fmt: skip
        for (title, _), trial in zip(TRIALS, trials, strict=True):
            told, _ = trial.communicate(GO)
            if trial.returncode:
                raise SystemExit(f"{title}: it ended with {trial.returncode}.")
            first, steps, later = json.loads(told.splitlines()[-1])
            print(f"{title:<34}{first:>10.1f} s{steps:>8.1f} s{1000 * later:>16.0f} ms", flush=True)


def folder_of(base: str, folder: Path) -> str:
    """A folder with a published shape and random weights; a preset needs none."""
    from transformers import AutoModelForCausalLM

    from recur_tune.common.known_shapes import PRESETS
    from recur_tune.models.pretrained import base_config

    if base in PRESETS:
        return base
    AutoModelForCausalLM.from_config(base_config(base)).save_pretrained(folder)
    return str(folder)


def seconds_of(fields: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds of the first step, of the first five, and of each later one."""
    from recur_tune.config.trial import TrialConfig
    from recur_tune.training.setup import set_up

    trainer, _ = set_up(TrialConfig(**fields))
    sys.stdin.readline()
    steps = trainer.run()
    times = [time.perf_counter(), *(time.perf_counter() for _ in islice(steps, 3 * STEPS))]
    later = (times[-1] - times[STEPS]) / (len(times) - 1 - STEPS)
    return times[1] - times[0], times[STEPS] - times[0], later


if __name__ == "__main__":
    main()
