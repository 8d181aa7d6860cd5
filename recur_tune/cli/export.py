"""`recur-tune export`: the model of a trial, for use without recur-tune."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import click

from recur_tune.cli.display import note, stderr
from recur_tune.cli.options import results_option, under_option
from recur_tune.cli.trial_tables import find_trial
from recur_tune.common.errors import UserError
from recur_tune.common.files import whole_folder
from recur_tune.common.parsing import parse, read_yaml, write_yaml
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import MODEL, SearchDirectory, results_folder
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState, TrialRecord
from recur_tune.training import REPORTS, RESULT, TRIAL, unfinished

LORA_FILE = "lora.safetensors"  # as `models/adapter.py`, which takes torch, names it
_OF_RUNS = (TRIAL, REPORTS, RESULT, LORA_FILE)


@click.command()
@click.argument("name")
@click.option("--trial", help="Which, as T7 or 7.")
@click.option("--best", is_flag=True, help="The one of the best quality, within --under where that is given.")
@under_option
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="A new folder.")
@click.option("--adapter", is_flag=True, help="LoRA's matrices alone, as peft opens them, and the recurrence.")
@results_option
def export(
    name: str, trial: str | None, best: bool, under: str | None, target: Path, adapter: bool, results: Path | None
) -> None:  # fmt: skip
    """Copy the trained model of a trial, in Hugging Face's format.

    Models are kept of the trials on the front, unless the search says `keep: all` or `keep: none`. NAME may also be
    the folder of a run of `recur-tune train`. What was trained by LoRA is merged into the weights; --adapter writes a
    folder that peft opens on the base, and that `recur-tune train --adapter` goes on from.

    \b
      recur-tune export books --best --under flops_per_token=55M --to models/books
      recur-tune export books --trial T7 --to models/T7
      recur-tune export books --trial T7 --adapter --to models/T7-lora
      recur-tune eval models/books --split test
    """
    called, model, config = _trained(name, trial, best, under, results)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"to: {target} is there already and not empty; give a new folder.")
    if adapter and not (model / LORA_FILE).is_file():
        raise UserError(f"adapter: {called} learned with trainable {config.trainable!r}, and only 'lora' makes one.")
    with whole_folder(target) as partial:
        if adapter:
            from recur_tune.models.adapter import write_adapter

            write_adapter(model, config.base, partial)
        else:
            for file in model.iterdir():
                if file.is_file() and file.name not in _OF_RUNS:
                    shutil.copy(file, partial)
            _add_code(partial)
        write_yaml(partial / TRIAL, config.plain_values())
    click.echo(called)
    stderr.print(f"written:  {target}", soft_wrap=True)
    stderr.print(f"next:  {_next(target, config, adapter)}", soft_wrap=True)


def _next(target: Path, config: TrialConfig, adapter: bool) -> str:
    """A command for what was exported. An adapter with a recurrence has its windows; a plain one is told them."""
    if not adapter:
        return shlex.join(["recur-tune", "eval", str(target), "--split", "test"])
    words = ["recur-tune", "train", "--base", config.base, "--adapter", str(target), "--corpus", config.corpus]
    if config.mechanism is None:
        words += ["--window", str(config.window), "--overlap", str(config.overlap)]
    return shlex.join([*words, "--out", "RUN"])


def _trained(
    name: str, trial: str | None, best: bool, under: str | None, results: Path | None
) -> tuple[str, Path, TrialConfig]:
    """A trial of a search, or a run: its name, the folder of its model, and its configuration."""
    run = Path(name)
    if (run / TRIAL).is_file() and (run / "config.json").is_file():
        if trial is not None or best or under is not None:
            raise UserError(f"trial: {name} is one run; leave --trial, --best and --under out.")
        if remark := unfinished(run):
            note(remark)
        return name, run, parse(TrialConfig, read_yaml(run / TRIAL))
    if os.sep in name or (run / TRIAL).is_file():
        raise _no_run(run)
    directory = SearchDirectory.open(results_folder(results), name)
    state = directory.state()
    record = _chosen(directory, state, trial, best, under)
    model = directory.trial(record.number) / MODEL
    if not model.is_dir():
        raise UserError(f"trial: {record.name} {_why_no_model(record, directory.spec)}.")
    return record.name, model, directory.with_own_base(directory.spec.trial_config(record.params))


def _no_run(folder: Path) -> UserError:
    """Why a folder is no run with a model."""
    if not folder.is_dir():
        return UserError(f"name: there is no folder {folder}; give a run's folder, or a search's name alone.")
    if (folder / TRIAL).is_file():
        return UserError(
            f"name: {folder} has no model before a first validation; go on: recur-tune train --out {folder} --resume."
        )
    return UserError(f"name: {folder} is no run of `recur-tune train` (no {TRIAL}); give another, or a search's name.")


def _chosen(
    directory: SearchDirectory, state: SearchState, trial: str | None, best: bool, under: str | None
) -> TrialRecord:
    """The trial that is named, or the best within limits."""
    if (trial is None) == (not best):
        raise UserError("trial: say which to take, by --trial T7 or by --best; not both.")
    if trial is not None:
        if under is not None:
            raise UserError("under: it goes with --best; --trial has chosen already.")
        return find_trial(directory, state, trial)
    from recur_tune.search.record.confirmation import confirmation, quality_of
    from recur_tune.search.record.decision import decide, qualities, read_limits, refuse_limits

    limits = read_limits(under) if under is not None else {}
    trials, confirmed = list(state.trials.values()), confirmation(state, directory.spec)
    found = decide(trials, qualities(trials, quality_of(directory.spec), confirmed), limits)
    if found is None:
        raise refuse_limits(state.trials.values(), limits)
    return found.best


def _add_code(model: Path) -> None:
    """Add the code to a recurrent model, so that it opens where recur-tune is not installed."""
    settings = json.loads((model / "config.json").read_text())
    if settings.get("recurrence") and "auto_map" not in settings:
        from recur_tune.models.export import write_code

        write_code(model)


def _why_no_model(record: TrialRecord, spec: SearchSpec) -> str:
    if record.state != "complete":
        return f"is {record.state}, and only a trial that has reached its full budget has a model to export"
    if spec.keep == "none":
        return "has left no model, since the search keeps none (keep: none)"
    return "is not on the front, and only models on the front are kept (keep: all keeps every one)"
