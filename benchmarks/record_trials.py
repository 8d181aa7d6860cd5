"""Train every point of a space of small trials and write all validations: a table for `search_quality.py`.

    python benchmarks/record_trials.py benchmarks/recorded_spread.csv [--processes 16] [--device cuda]

The YAML file of the table's name has the space. Bodies that it describes are pretrained first, once. The program can be
stopped and started again: trials in the table are not trained again.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # one process per core; before torch is imported

import optuna
from search_replay.recorded import points, read_rows, value_of
from search_replay.task import COSTS

from recur_tune.common.parsing import parse, read_yaml
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.space import Fixed, Space
from recur_tune.search.record.spec import SearchSpec

Point = dict[str, Any]
SETTINGS = ("bodies", "pretraining")  # in the YAML file beside what a search has


def pretrain(job: tuple[dict[str, Any], dict[str, Any], str, Path]) -> None:
    """A body of a shape of its own in a folder of its own, on the corpus of the trials."""
    import torch
    from transformers import GPT2Config

    from recur_tune.common.known_shapes import PRESETS
    from recur_tune.data.tokenizers import load_tokenizer
    from recur_tune.models.pretrained import fresh_model, recurrent_config, save_model
    from recur_tune.training.pretraining import pretraining_fields
    from recur_tune.training.run_folder import run_in_folder

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape, pretraining, corpus, folder = job
    if (folder / "result.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)  # half of one
    fresh, tokenizer = folder.with_name(f"{folder.name}-fresh"), load_tokenizer("bytes")
    settings = {**PRESETS["tiny"], **shape, "vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": None}
    save_model(fresh_model(recurrent_config(GPT2Config(**settings), None, None)), tokenizer, fresh)
    fields = {**pretraining_fields("tiny"), **pretraining, "base": str(fresh), "corpus": corpus}
    run_in_folder(parse(TrialConfig, fields), folder, resume=False, listen=lambda report: None)


def train(job: tuple[TrialConfig, Point, str, str]) -> list[Point]:
    """One row per validation."""
    import torch

    from recur_tune.cost.estimate import estimate
    from recur_tune.training.setup import set_up

    torch.set_num_threads(1)
    config, point, quality, device = job
    trainer, _ = set_up(config, torch.device(device))
    found = estimate(config, trainer.model.config).costs
    costs = {name: round(found[name]) for name in COSTS}
    return [
        {**point, "tokens": report.tokens, quality: round(report.validation[quality], 5), **costs}
        for report in trainer.run() if report.validation is not None
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="trials at a time")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; many small trials share a GPU")
    parser.add_argument("--at-most", type=int, help="trials to train now")
    parser.add_argument("--bases", type=Path, default=Path("build") / "recorded_bases", help="where bodies are kept")
    arguments = parser.parse_args()
    given = read_yaml(arguments.table.with_suffix(".yaml"))
    settings = {name: given.pop(name, {}) for name in SETTINGS}
    spec = parse(SearchSpec, {**given, "budget": {**given["budget"], "trials": 1}})
    space, corpus = spec.parsed_space, spec.parsed_space.fixed["corpus"]
    names = [Space.label(name, one) for name, one in space.all_parameters.items() if not isinstance(one, Fixed)]
    quality, rows = spec.objectives[0], list[dict[str, str]]()
    if arguments.table.exists() and arguments.table.stat().st_size:  # it is empty while bodies are pretrained
        names, quality, rows = read_rows(arguments.table)
    done = {tuple(value_of(row[name]) for name in names) for row in rows}
    todo = [point for point in points(space) if tuple(point.get(name) for name in names) not in done]
    todo = todo[: arguments.at_most]
    print(f"{len(done)} trials are recorded, {len(todo)} to go", flush=True)
    wanted = {point.get("base", space.fixed.get("base")) for point in todo}
    began = time.monotonic()
    # Spawned, because a forked torch may inherit locked thread pools.
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool, arguments.table.open("a") as file:
        bases = {name: arguments.bases.absolute() / name for name in settings["bodies"] if name in wanted}
        shapes = [(settings["bodies"][name], settings["pretraining"], corpus, bases[name]) for name in bases]
        pool.map(pretrain, shapes)
        print(f"bodies are there after {time.monotonic() - began:.0f} s", flush=True)
        writer = csv.DictWriter(file, [*names, "tokens", quality, *COSTS])
        if not rows:
            writer.writeheader()
        jobs = [(_config(spec, point, bases), point, quality, arguments.device) for point in todo]
        for number, trained in enumerate(pool.imap_unordered(train, jobs), start=1):
            writer.writerows(trained)
            file.flush()
            print(f"{number} of {len(todo)}, {time.monotonic() - began:.0f} s", flush=True)


def _config(spec: SearchSpec, point: Point, bases: dict[str, Path]) -> TrialConfig:
    config = spec.trial_config(spec.parsed_space.draw(optuna.trial.FixedTrial(point)))
    folder = bases.get(config.base) or _preset(config)
    return config.model_copy(update={"base": str(folder)})


def _preset(config: TrialConfig) -> Path:
    from recur_tune.training.pretraining import pretrained_base, pretraining_of

    return pretrained_base(pretraining_of(config.base, config.corpus, config.tokenizer))


if __name__ == "__main__":
    main()
