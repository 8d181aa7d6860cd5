"""Informer and RSA-Informer on ETT and Weather, as a reproduction of *Encoding Recurrence into Transformers* has them,
beside a patch decoder with and without a state, and DLinear.

    python experiments/forecasts.py --data ett --processes 8

--data has ETTh1.csv, ETTh2.csv, ETTm1.csv and WTH.csv. A row is a file and a horizon. Windows and start tokens of
Informer are those of its published scripts; the others have windows of their own, the same in every row of a file. The
saved model of a run is the one with the best validation. A run is a line of --out; the same command continues after a
stop. At the end it prints MSE and MAE of the test split, with standard errors over seeds.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
from itertools import product
from pathlib import Path
from typing import Any

from comparison_results import Result
from rich.console import Console
from rich.table import Table
from runs import Job, Record, folder_name, processes, trained

from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.models.pretrained import load_model
from recur_tune.ops.device import default_device
from recur_tune.training.evaluation_settings import evaluation_settings

# MSE and MAE by row: Informer and RSA-Informer as published, then as reproduced; None where the reproduction had none.
Reported = tuple[tuple[float, float] | None, ...]
REPORTED: dict[tuple[str, int], Reported] = {
    ("ETTh1", 24): ((0.762, 0.632), (0.414, 0.450), (0.679, 0.590), (0.632, 0.568)),
    ("ETTh1", 48): ((1.006, 0.763), (0.467, 0.493), (0.935, 0.724), (0.908, 0.714)),
    ("ETTh1", 168): ((1.141, 0.823), (0.753, 0.659), (1.464, 1.000), (1.265, 0.886)),
    ("ETTh1", 336): ((1.416, 0.987), (0.895, 0.755), (1.645, 1.071), (1.902, 1.158)),
    ("ETTh2", 24): ((2.558, 1.253), (1.264, 0.879), (0.951, 0.777), (1.091, 0.840)),
    ("ETTh2", 48): ((2.487, 1.268), (1.878, 1.067), (2.584, 1.300), (1.465, 0.970)),
    ("ETTh2", 168): ((2.869, 1.324), (2.830, 1.301), (2.534, 1.259), (3.658, 1.559)),
    ("ETTh2", 336): ((2.055, 1.113), (2.113, 1.124), (2.292, 1.195), (2.331, 1.222)),
    ("ETTm1", 24): ((0.536, 0.511), (0.534, 0.507), (0.695, 0.611), (0.741, 0.643)),
    ("ETTm1", 48): ((0.781, 0.633), (0.644, 0.612), (0.782, 0.648), (0.747, 0.744)),
    ("ETTm1", 96): ((0.823, 0.697), (0.732, 0.665), (1.088, 0.817), (1.313, 0.935)),
    ("ETTm1", 288): ((1.371, 0.945), (0.835, 0.710), None, None),
    ("WTH", 24): ((0.316, 0.371), (0.328, 0.380), (0.886, 0.720), (0.992, 0.765)),
    ("WTH", 48): ((0.606, 0.566), (0.432, 0.464), (0.555, 0.546), (0.490, 0.502)),
    ("WTH", 168): ((1.009, 0.771), (0.862, 0.702), (0.643, 0.598), (0.853, 0.699)),
    ("WTH", 336): ((1.096, 0.801), (0.846, 0.697), None, None),
}
INFORMER_WINDOWS = {  # and label_steps, by row
    ("ETTh1", 24): (48, 48), ("ETTh1", 48): (48, 48), ("ETTh1", 168): (168, 168), ("ETTh1", 336): (168, 168),
    ("ETTh2", 24): (48, 48), ("ETTh2", 48): (96, 96), ("ETTh2", 168): (336, 336), ("ETTh2", 336): (336, 168),
    ("ETTm1", 24): (672, 96), ("ETTm1", 48): (96, 48), ("ETTm1", 96): (384, 384), ("ETTm1", 288): (672, 288),
    ("WTH", 24): (168, 168), ("WTH", 48): (96, 48), ("WTH", 168): (336, 168), ("WTH", 336): (720, 168),
}  # fmt: skip
FILES = list(dict.fromkeys(file for file, _ in REPORTED))
_INFORMER = {
    "body": "informer", "body_layers": 2, "body_width": 512, "body_heads": 8, "recurrence": "none", "dropout": 0.05,
    "learning_rate": 1e-4, "bptt_windows": 2, "batch": 16, "overlap": 0, "warmup_steps": 10,
}  # fmt: skip
_PATCHES = {
    "body": "patches", "patch": 24, "recurrence": "none", "bptt_windows": 4, "batch": 2, "learning_rate": 1e-3,
    "decay": "cosine", "dropout": 0.2, "tokens": "800k",
}  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "Informer": _INFORMER,
    "RSA-Informer": _INFORMER | {"recurrence": "scores", "score_heads": 4},
    "patches": _PATCHES,
    "patches, cache": _PATCHES | {"recurrence": "cache", "cache_rows": 28},
    "DLinear": {
        "body": "dlinear", "recurrence": "none", "window": 336, "overlap": 312, "bptt_windows": 2, "batch": 8,
        "learning_rate": 1e-3, "decay": "cosine", "tokens": "2M",
    },
}  # fmt: skip
STATES = ("patches, cache",)  # forms that pass a state from window to window
NAMES = ("form", "data", "horizon", "seed")


def main() -> None:
    """Train, score, write and print."""
    arguments = parsed_arguments()
    record = Record(arguments.out, NAMES)
    rows = [row for row in REPORTED if row[0] in arguments.files and row[1] in arguments.horizons]
    jobs = [(form, *row, seed) for seed, row, form in product(arguments.seeds, rows, arguments.forms)]
    with processes(arguments.processes) as mapping:
        record.run(mapping, run, arguments, jobs, lambda result: float(result["mse"]))
    print_table(record.results)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with the four files")
    parser.add_argument("--out", type=Path, default=Path("forecasts.jsonl"), help="where the numbers go")
    parser.add_argument("--runs", type=Path, default=Path("runs/forecasts"), help="where models go, one at a time")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES)
    parser.add_argument("--horizons", nargs="+", type=int, default=sorted({horizon for _, horizon in REPORTED}))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--windows", type=int, default=50_000, help="that Informer is trained on")
    parser.add_argument("--validations", type=int, default=8, help="while a model is trained")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="of all trials")
    return parser.parse_args()


def run(given: tuple[argparse.Namespace, Job]) -> Result:
    """Train one model and score it, in a process that has done others before."""
    arguments, job = given
    form, data, horizon, seed = job
    kind = "weather" if data == "WTH" else "ett"
    fields = {
        "corpus": f"{kind}:{arguments.data / data}.csv", "horizon": horizon, "seed": seed, "checkpointing": "none",
        "validation_tokens": 40_000,
    } | FORMS[form]  # fmt: skip
    if fields["body"] == "informer":
        fields["window"], fields["label_steps"] = INFORMER_WINDOWS[data, horizon]
        fields["tokens"] = arguments.windows * fields["window"]
    fields.setdefault("window", 384 if data == "ETTm1" else 168)
    config = parse(TrialConfig, fields | dict(pair.split("=", 1) for pair in arguments.set))
    config = config.model_copy(update={"validate_every": config.tokens // arguments.validations})
    folder = arguments.runs / folder_name(*job)
    result = trained(config, folder)
    scored = scores(folder, config)
    shutil.rmtree(folder)
    return dict(zip(NAMES, job, strict=True)) | result | scored


def scores(folder: Path, config: TrialConfig) -> dict[str, float]:
    """MSE and MAE of every window of the test split."""
    model, _ = load_model(folder)
    windowing = config.windowing
    reading = evaluation_settings(folder, model, config.corpus, windowing.size, windowing.overlap)
    task = reading.task.build(reading.task_spec)
    found = task.evaluate(
        model.to(default_device()), task.prepare(config.corpus, "test", None), reading.windowing, 64, "auto"
    )
    metrics = found.metrics()
    return {"mse": metrics["mse"], "mae": metrics["mae"]}


def print_table(results: list[Result]) -> None:
    """All rows, and on how many a state is below Informer."""
    by_place: dict[tuple[str, int], dict[str, list[Result]]] = {}
    for one in results:
        by_place.setdefault((one["data"], one["horizon"]), {}).setdefault(one["form"], []).append(one)
    for metric, place in (("mse", 0), ("mae", 1)):
        heads = ("published", "published RSA", "reproduced", "reproduced RSA", *FORMS)
        table = Table(f"{metric.upper()}, test", "horizon", *heads, box=None)
        for row, reported in REPORTED.items():
            if row in by_place:
                said = [f"{one[place]:.3f}" if one else "" for one in reported]
                ours = [told([run[metric] for run in by_place[row].get(form, [])]) for form in FORMS]
                table.add_row(row[0], str(row[1]), *said, *ours)
        Console(width=190).print(table)
    lower, rows = 0, 0
    for forms in by_place.values():
        if "Informer" in forms and any(form in forms for form in STATES):
            rows += 1
            lower += min(mean(forms[form]) for form in STATES if form in forms) < mean(forms["Informer"])
    Console().print(f"a model with a state has a lower MSE than Informer in {lower} of {rows} rows")


def mean(runs: list[Result]) -> float:
    """MSE, over seeds."""
    return statistics.fmean(run["mse"] for run in runs)


def told(values: list[float]) -> str:
    """Mean and standard error."""
    if not values:
        return ""
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{error}"


if __name__ == "__main__":
    main()
