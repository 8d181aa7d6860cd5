"""Every mechanism beside `pooled`: tokens per second against what FLOPs predict, peak memory against its prediction.

    python benchmarks/mechanisms.py                                             # small sizes, for a CPU
    python benchmarks/mechanisms.py --base mini --batch 16 --window 300 --bptt-windows 10

Every line trains the same base on the same random tokens. "Promised" is pooled's speed times the ratio of the two
steps' FLOPs, as torch counts them. "Of the promise" is the measured speed over that.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table
from train_step import add_shape, forget, our_line, random_batch, rows_of

from recur_tune.bptt.plan import Execution
from recur_tune.common.parsing import parse
from recur_tune.common.shape import shape_of
from recur_tune.common.units import format_count, format_size
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import training_flops
from recur_tune.cost.training_memory import plan_memory, resolve_plan
from recur_tune.models.pretrained import base_config
from recur_tune.ops.device import default_device

FORMS: dict[str, dict[str, Any]] = {
    "pooled": {"recurrence": "pooled"},
    "none": {"recurrence": "none"},
    "pooled, 8 into all layers": {
        "recurrence": "pooled", "l_ins": "all", "pooling": "recent", "embeddings": 8, "skip": True,
    },
    "tokens": {"recurrence": "tokens"},
    "tokens, a ring of 4": {"recurrence": "tokens", "ring": 4},
    "cache, gate": {"recurrence": "cache", "cache_join": "gate"},
    "cache, softmax": {"recurrence": "cache"},
    "cache, keydiff": {"recurrence": "cache", "cache_keep": "keydiff"},
    "cache, 4 bits": {"recurrence": "cache", "cache_bits": 4},
    "cache, keydiff, 4 bits": {"recurrence": "cache", "cache_keep": "keydiff", "cache_bits": 4},
    "cache, overflow": {"recurrence": "cache", "overflow": "gated_delta"},
    "cache, keydiff, overflow": {"recurrence": "cache", "cache_keep": "keydiff", "overflow": "gated_delta"},
    "gated_delta": {"recurrence": "gated_delta"},
    "fast_weights, linear": {"recurrence": "fast_weights", "write_rule": "linear"},
    "fast_weights, delta": {"recurrence": "fast_weights", "write_rule": "delta"},
    "fast_weights, gated": {"recurrence": "fast_weights", "write_rule": "gated"},
    "scores": {"recurrence": "scores"},
    "blocks": {"recurrence": "blocks"},
    "ttt": {"recurrence": "ttt"},
}  # fmt: skip


def main() -> None:
    """Print the table."""
    arguments = parsed_arguments()
    device, base = default_device(), base_config(arguments.base)
    execution = Execution(cuda_graph=True, fused_kernels=True) if device.type == "cuda" else Execution()
    table = Table(
        f"{arguments.base}, {arguments.batch} chains of {arguments.bptt_windows} windows of {arguments.window}, "
        f"{execution}",
        "training FLOPs/token", "tokens/s", "promised", "of the promise", "peak memory", "predicted", box=None,
    )  # fmt: skip
    yardstick: tuple[float, float] | None = None  # pooled's tokens per second, and FLOPs per token
    for name, fields in FORMS.items():
        if arguments.recurrences and fields["recurrence"] not in ("pooled", *arguments.recurrences):
            continue
        given = {
            name: getattr(arguments, name) for name in ("base", "batch", "window", "bptt_windows", "checkpointing")
        }
        trial = parse(TrialConfig, given | fields | execution._asdict())
        batch, plan = random_batch(trial, base.vocab_size).to(device), resolve_plan(trial, base)
        lines = [our_line(name, trial, base, plan, batch, device, dropout=0.0)]
        [row] = rows_of(lines, arguments, batch, device)
        work = training_flops(trial, shape_of(base.to_dict()), base, plan)
        yardstick = yardstick or (row.rate, work)
        promised = yardstick[0] * yardstick[1] / work
        table.add_row(
            name, format_count(work), format_count(row.rate), format_count(promised), f"{row.rate / promised:.2f} x",
            format_size(row.peak), format_size(plan_memory(trial, base, plan, trial.batch)),
        )  # fmt: skip
        lines.clear()
        forget(device)
    Console(width=120).print(table)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shape(parser, steps=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--checkpointing", choices=["all", "none"], default="none")
    parser.add_argument("--recurrences", nargs="+", help="only these, beside pooled")
    return parser.parse_args()


if __name__ == "__main__":
    main()
