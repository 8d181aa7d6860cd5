"""Settings to evaluate or continue a trained run with: its corpus, windows and task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.models import Windowed
from recur_tune.models.windowed import WindowedConfig
from recur_tune.recurrences.registry import of_settings
from recur_tune.tasks.registry import Task, task_of
from recur_tune.training import TRIAL


@dataclass(frozen=True)
class EvaluationSettings:
    """Corpus, windows and task of an evaluation, and a warning for the user."""

    corpus: str
    windowing: Windowing
    task: Task
    task_spec: BaseModel
    warning: str | None = None


def evaluation_settings(
    run: Path, model: Windowed, corpus: str | None = None, window: int | None = None, overlap: int | None = None
) -> EvaluationSettings:
    """As the run was trained, unless something else is given.

    A plain model can be read at any overlap. A recurrent one is likely worse with windows other than in training
    (section 4.2 of the paper), so the settings have a warning.
    """
    trial = trial_of(run)
    saved = model.config
    corpus = corpus or corpus_of(run)
    task = task_of(corpus)
    if problem := task.refusal(saved.shape, str(run), corpus):
        raise UserError(problem)
    task_spec = trial.task_spec if trial and trial.task is task else task.spec()
    reserved = task.reserved(task_spec)
    trained = trial.windowing if trial else replace(saved.windowing, reserved=reserved)
    size = trained.size if window is None else window
    room = size - reserved
    shared = min(trained.overlap, max(room - 1, 0)) if overlap is None else overlap
    rows = _rows_beside(saved)
    if size // saved.shape.patch + rows > (context := saved.shape.context):
        beside = f" and the {rows} rows beside it" if rows else ""
        raise UserError(f"window: {size}{beside} is more than the {context} positions of {run}.")
    if shared >= room:
        beside = f" less the {reserved} tokens for a question" if reserved else ""
        raise UserError(
            f"overlap: {shared} is not smaller than the window of {size}{beside}; choose one from 0 to {room - 1}."
            if room > 0
            else f"window: {size} has no room beside the {reserved} tokens for a question; choose a longer one."
        )
    windowing, warning = Windowing(size, shared, reserved), None
    if model.recurrence is not None and windowing != trained:
        warning = (
            f"{run} was trained with window {trained.size} and overlap {trained.overlap}; a recurrent model read with "
            f"window {size} and overlap {shared} is likely worse than it could be."
        )
    return EvaluationSettings(corpus, windowing, task, task_spec, warning)


def trial_of(run: Path) -> TrialConfig | None:
    """A run's trial; None for a folder that another program wrote."""
    return parse(TrialConfig, read_yaml(run / TRIAL)) if (run / TRIAL).exists() else None


def corpus_of(run: Path) -> str:
    """The corpus that a run was trained on; `stdlib` where it is not known."""
    trial = trial_of(run)
    return trial.corpus if trial else "stdlib"


def _rows_beside(config: WindowedConfig) -> int:
    """Positions that a saved model's recurrence takes beside a window."""
    if config.recurrence is None:
        return 0
    mechanism, spec = of_settings(config.recurrence)
    return mechanism.positions(spec, config.shape)
