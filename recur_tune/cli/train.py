"""`recur-tune pretrain` and `recur-tune train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recur_tune.cli.display import TokenProgress, at_work, note, print_table, stderr
from recur_tune.cli.options import as_json, fields_from, print_json, trial_options
from recur_tune.common.errors import UserError
from recur_tune.common.known_shapes import PRESETS, PRETRAINING
from recur_tune.common.parsing import parse
from recur_tune.common.units import format_count, format_size
from recur_tune.config.fields import RECURRENCE_FIELDS
from recur_tune.config.schedule import misfit
from recur_tune.config.trial import FROZEN_FIELDS, LORA_FIELDS, TrialConfig
from recur_tune.cost.descriptors import COSTS
from recur_tune.tasks import registry as tasks
from recur_tune.training.pretraining import pretraining_fields

if TYPE_CHECKING:
    from recur_tune.training.loop import Report

_out = click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the model and its reports."
)
_resume = click.option("--resume", is_flag=True, help="Resume the interrupted run in --out, with its own settings.")
_WORTH_TELLING = 2**30  # bytes of a base; fewer are loaded within seconds
_FIXED_IN_PRETRAINING = (
    "base", "recurrence", *RECURRENCE_FIELDS, *LORA_FIELDS, *FROZEN_FIELDS, *tasks.FIELDS, "bptt_windows", "overlap",
    "decay", "checkpointing", "memory_budget",
)  # fmt: skip


@click.command()
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), default="tiny", show_default=True, help="The model's shape."
)
@trial_options(leave_out=_FIXED_IN_PRETRAINING, from_preset=["window", *PRETRAINING["tiny"]])
@_out
@_resume
@as_json
def pretrain(preset: str, fields: dict[str, Any], out: Path, resume: bool, as_json: bool) -> None:
    """Train a small GPT-2 from scratch, to have a base where none can be downloaded.

    The window is the model's whole context and the learning rate falls along a cosine; what is not given
    comes from the preset.

    \b
      tiny: 3 layers of 64, 128 positions, bytes; window 128, batch 8, learning rate 6e-3, 600k tokens
      mini: 8 layers of 512, 1024 positions, GPT-2's BPE; window 1024, batch 64, learning rate 1e-3, 200M tokens

    \b
      recur-tune pretrain --preset tiny --corpus tales --out runs/base
      recur-tune pretrain --preset mini --corpus text:books --tokenizer gpt2 --out runs/mini
    """
    _run(pretraining_fields(preset) | fields, fields, out, resume, as_json)


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@trial_options()
@_out
@_resume
@as_json
def train(config: Path | None, fields: dict[str, Any], out: Path, resume: bool, as_json: bool) -> None:
    """Fine-tune a base with a recurrence, or without one for comparison.

    CONFIG is a YAML file of the same fields as the flags below, `clip_norm: 2` for --clip-norm 2; flags win over it.
    Ctrl-C stops after the current step and saves; --resume continues as without the stop.

    \b
      recur-tune train --base runs/base --corpus tales --recurrence cache --cache-rows 16 \\
          --window 24 --bptt-windows 4 --tokens 50k --out runs/a
      recur-tune train --base runs/base --corpus tales --recurrence none \\
          --window 24 --bptt-windows 4 --tokens 50k --out runs/plain
      recur-tune train --base models/qwen --trainable lora --lora-rank 16 --recurrence cache --out runs/lora
      recur-tune train --base models/qwen --adapter some-peft-folder --recurrence none --out runs/on
      recur-tune train --base none:14x512x8 --corpus enwik8 --recurrence cache --cache-sinks 0 --out runs/scratch
      recur-tune train trial.yaml --learning-rate 1e-4 --out runs/b
      recur-tune train --out runs/b --resume
    """
    given = fields_from(config, fields)
    if given.get("adapter") is not None and not resume:
        from recur_tune.models.adapter import adapter_fields

        given = adapter_fields(Path(given["adapter"])) | given
    _run(given, given, out, resume, as_json)


def _run(fields: dict[str, Any], changes: dict[str, Any], out: Path, resume: bool, as_json: bool) -> None:
    """Train with `fields`, or with --resume with the folder's settings and the `changes` to them."""
    config = None if resume else parse(TrialConfig, fields)
    with at_work("loading torch …"):
        from recur_tune.training.run_folder import Interrupted, run_in_folder, stored_config, untrained_validation

    config = config or stored_config(out, changes)
    if remark := misfit(config):
        note(remark)

    def listen(report: Report) -> None:
        text = f"loss {report.loss:.3f}"
        if report.validation is not None:
            text += f"  validation {report.validation['loss']:.4f}{_judged(report, untrained_validation(out))}"
        progress.update(report.tokens, text, important=report.validation is not None)

    told: list[str] = []

    def teaching(words: str, tokens: int, total: int) -> None:
        if not told:
            told.append(words)
            note(words)
        progress.aside("the teacher reads", tokens, total)

    def loading(done: int, total: int) -> None:
        if total > _WORTH_TELLING:
            progress.say(f"loading the base: {format_size(done)} of {format_size(total)}")

    try:
        with TokenProgress(f"training {out}", config.tokens) as progress:
            result = run_in_folder(
                config, out, resume, listen, note, teaching=teaching, loading=loading, stage=progress.stage
            )
    except Interrupted:
        stderr.print(f"stopped and saved; resume with:  recur-tune {sys.argv[1]} --out {out} --resume", highlight=False)
        raise KeyboardInterrupt from None
    if as_json:
        print_json(result)
    else:
        _print_result(out, config, result)


def _print_result(out: Path, config: TrialConfig, result: dict[str, Any]) -> None:
    if result["validation"] is None:
        raise UserError(f"out: {out} holds a result without a validation.")
    measured, last = result["measured_peak_memory"], result.get("last_validation") or result["validation"]
    best = last == result["validation"]
    print_table(
        f"{out}: {config.body_name} with {config.recurrence}, window {config.window}, overlap {config.overlap}",
        {
            "tokens trained on": format_count(result["tokens"]),
            **_untrained(result),
            **{f"validation {name}": value for name, value in config.task.in_words(result["validation"]).items()},
            **({} if best else {"validation loss at the end, not saved": f"{last['loss']:.5g}"}),
            **{
                COSTS[name].explained: COSTS[name].unit.format(result[name])
                for name in ("flops_per_token", "training_flops_per_token")
            },
            **_of_teacher(result),
            "peak memory predicted": format_size(result["peak_memory"]),
            "peak memory measured": format_size(measured) if measured else "not measured (too few steps)",
        },
    )
    if _is_no_better(result["validation"], result.get("untrained_validation")):
        note("no validation was better than that before training; a lower --learning-rate or more --tokens may help.")
    stderr.print(f"next:  recur-tune eval {out} --split test", highlight=False)


def _judged(report: Report, before: dict[str, float] | None) -> str:
    """What a validation is beside those before it, that before training too."""
    assert report.validation is not None
    if _is_no_better(report.validation, before):
        return "  (no better than before training)"
    return "  (best so far)" if report.best else ""


def _is_no_better(validation: dict[str, float], before: dict[str, float] | None) -> bool:
    return before is not None and validation["loss"] >= before["loss"]


def _untrained(result: dict[str, Any]) -> dict[str, str]:
    """What there was before the first step."""
    before = result.get("untrained_validation")
    return {"validation loss before training": f"{before['loss']:.5g}"} if before else {}


def _of_teacher(result: dict[str, Any]) -> dict[str, str]:
    """What the teacher's predictions took; nothing for most runs."""
    if "teacher_flops" not in result:
        return {}
    size = format_size(result["teacher_bytes"])
    return {"teacher's predictions, once for all runs": f"{format_count(result['teacher_flops'])} FLOPs, {size}"}
