"""Run folder: the trained model in Hugging Face's format, its configuration, reports and checkpoint.

trial.yaml           the configuration, every default written out
reports.jsonl        one line per report
untrained.json       the validation before the first step
result.json          the saved model's validation, and the last one; costs predicted and measured
model.safetensors …  the best model so far, with config.json and the tokenizer: a Hugging Face folder
resume/              the checkpoint to resume from
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.files import append_line, whole_folder, write_text
from recur_tune.common.parsing import parse, read_yaml, write_yaml
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.estimate import estimate
from recur_tune.models.adapter import other_base, recurrence_left_behind
from recur_tune.models.checked_weights import unread_remark
from recur_tune.models.pretrained import left_behind, save_model
from recur_tune.ops.out_of_memory import out_of_memory_as_user_error
from recur_tune.training import REPORTS, RESULT, RESUME, TRIAL, UNTRAINED
from recur_tune.training.checkpoint import load_checkpoint, save_checkpoint
from recur_tune.training.interrupt import stop_requests
from recur_tune.training.loop import Report, Trainer
from recur_tune.training.setup import Teaching, no_teaching, set_up
from recur_tune.training.teacher import teacher_flops_per_token

# Fields that may change when a run is resumed: its length, and when it is validated.
_MAY_CHANGE = {"tokens", "patience", "validate_every", "validation_tokens"}


class Interrupted(Exception):
    """The run was asked to stop; it is saved and can be resumed."""


def run_in_folder(
    config: TrialConfig, folder: Path, resume: bool, listen: Callable[[Report], None],
    warn: Callable[[str], None] = lambda text: None, stop: Callable[[], bool] = lambda: False,
    teaching: Teaching = no_teaching, loading: Callable[[int, int], None] = lambda done, total: None,
    stage: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:  # fmt: skip
    """Train in a folder and return the result. `listen` gets every report, `warn` sentences about damaged checkpoints
    and unused weights, `teaching` how the predictions of a teacher are made, where they are, `loading` how many bytes
    of the weights are on the device, of how many, `stage` what begins and may take a while.

    A signal, or `stop`, ends it after the current step.
    """
    check_folder(folder, resume)
    trainer, tokenizer = set_up(config, teaching=teaching, loading=loading, stage=stage)
    cost = estimate(config, trainer.model.config, trainer.workers)
    if resume:
        if damage := load_checkpoint(trainer, folder / RESUME):
            warn(damage)
        _forget_reports_after(folder / REPORTS, trainer.progress.tokens)
    for remark in _remarks(config, trainer):
        warn(remark)
    with whole_folder(folder) as partial:
        write_yaml(partial / TRIAL, config.plain_values())
    report: Report | None = None
    too_large = (
        f"batch: {config.batch} chains of windows of {config.window} do not fit into the device's memory with "
        f"checkpointing '{config.checkpointing}'; `recur-tune cost` tells what a smaller batch or 'all' would need."
    )
    with stop_requests() as stop_requested, out_of_memory_as_user_error(too_large):
        for report in trainer.run(stage):
            if trainer.untrained is not None and report.step == 1:
                write_text(folder / UNTRAINED, json.dumps(trainer.untrained) + "\n")
            append_line(folder / REPORTS, json.dumps(report.to_dict()))
            if report.best:
                with whole_folder(folder) as partial:
                    save_model(trainer.model, tokenizer, partial)
            stopping = (stop_requested() or stop()) and not report.last
            if report.validation is not None or stopping:
                save_checkpoint(trainer, folder / RESUME)
            listen(report)
            if stopping:
                raise Interrupted
    if report is None:  # resumed after its end
        return json.loads((folder / RESULT).read_text())
    result = {
        "steps": trainer.progress.step,
        "tokens": trainer.progress.tokens,
        "best_validation_loss": trainer.progress.best_loss,
        "validation": _of_the_saved_model(folder / REPORTS),
        "last_validation": report.validation,
        "untrained_validation": untrained_validation(folder),
        **cost.to_dict(),
        "measured_peak_memory": trainer.measured_peak_bytes,
        **_of_teacher(config, trainer),
    }
    write_text(folder / RESULT, json.dumps(result, indent=2) + "\n")
    return result


def _remarks(config: TrialConfig, trainer: Trainer) -> list[str]:
    """What of the base, the adapter and the text is not used."""
    found = [unread_remark(config.base, trainer.model.unread), *trainer.stream.remarks]
    if config.adapter is not None:
        adapter = Path(config.adapter)
        found.insert(0, recurrence_left_behind(adapter, config.recurrence_spec))
        found.insert(0, other_base(adapter, trainer.model, config.base))
    if config.task.body is None:
        found.insert(0, left_behind(config.base, config.recurrence_spec))
    return [remark for remark in found if remark]


def untrained_validation(folder: Path) -> dict[str, float] | None:
    """The validation before the first step; None where an earlier version began the run."""
    file = folder / UNTRAINED
    return json.loads(file.read_text()) if file.exists() else None


def _of_teacher(config: TrialConfig, trainer: Trainer) -> dict[str, float]:
    """What its teacher's predictions took, which all trials of the same base and text share."""
    if config.teacher is None:
        return {}
    tokens, shape = len(trainer.stream.split.tokens), trainer.model.config.shape
    return {
        "teacher_flops": tokens * teacher_flops_per_token(config.teacher, shape),
        "teacher_bytes": tokens * config.teacher.bytes_per_token(shape),
    }


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse to overwrite a run, or to resume one that is not there."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out: {folder} is a file; give a folder.")
    if resume and not (folder / RESUME).is_dir():
        raise UserError(f"out: {folder} holds no interrupted run to resume.")
    if not resume and (folder / TRIAL).exists():
        raise UserError(f"out: {folder} already holds a run; add --resume to continue it, or choose another folder.")
    if not resume and folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"out: {folder} holds other files; give a folder that is new or empty.")


def stored_config(folder: Path, changes: dict[str, Any]) -> TrialConfig:
    """The configuration of a run on disk, with changes that a resumed run may have."""
    check_folder(folder, resume=True)
    stored = parse(TrialConfig, read_yaml(folder / TRIAL))
    wanted = parse(TrialConfig, stored.model_dump() | changes)
    for field in TrialConfig.model_fields:
        before, after = getattr(stored, field), getattr(wanted, field)
        if before != after and field not in _MAY_CHANGE:
            raise UserError(f"{field}: the run in {folder} has {before!r} and cannot be resumed with {after!r}.")
    return wanted


def _of_the_saved_model(reports: Path) -> dict[str, float] | None:
    """The validation of the best model, which is the one that is saved."""
    best = [report for report in map(json.loads, reports.read_text().splitlines()) if report["best"]]
    return best[-1]["validation"] if best else None


def _forget_reports_after(path: Path, tokens: int) -> None:
    """Remove reports after the checkpoint: those steps run again."""
    if path.exists():
        lines = path.read_text().splitlines()
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["tokens"] <= tokens]
        write_text(path, "".join(f"{line}\n" for line in kept))
