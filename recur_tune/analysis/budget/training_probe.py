"""Training probe: a few more training steps of a run, with its own settings and weights, to measure them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from recur_tune.bptt.cuda_graph import side_stream
from recur_tune.bptt.plan import chosen_execution
from recur_tune.bptt.trained import trained_of
from recur_tune.common.errors import UserError
from recur_tune.common.files import reading
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.training_memory import resolve_plan
from recur_tune.data.tokenizers import fingerprint
from recur_tune.data.tokens import prepare
from recur_tune.models.pretrained import check_model, load_decoder
from recur_tune.tasks.language_modelling.evaluation import Evaluation, evaluate
from recur_tune.training import RESULT
from recur_tune.training.evaluation_settings import trial_of
from recur_tune.training.loop import Report, Trainer

_WITHOUT_END = 10**15  # tokens: no validation is due, and the budget never ends


@dataclass(frozen=True)
class TrainingProbe:
    """A run under measurement.

    Attributes:
        run: Its folder.
        config: Its trial.
        tokenizer: The digest of its tokenizer.
        evaluation: Its scores on the validation split.
        peak_memory: Bytes of a training step.
        recorded_memory: The same when the run was trained; None where it was not recorded.
        steps: The training, a report per step.
    """

    run: Path
    config: TrialConfig
    tokenizer: str
    evaluation: Evaluation
    peak_memory: int
    recorded_memory: int | None
    steps: Iterator[Report]


def trial_to_measure(run: Path) -> TrialConfig:
    """A run's trial; refuses a folder without a model or without trial.yaml."""
    check_model(run)
    config = trial_of(run)
    if config is None:
        raise UserError(
            f"run: {run} does not say how it was trained (no trial.yaml); give a folder that `recur-tune train` or "
            "`recur-tune export` wrote."
        )
    return config


def probe_training(
    run: Path, corpus: str, device: torch.device, progress: Callable[[int], None] = lambda tokens: None
) -> TrainingProbe:
    """Score a run and make two training steps; the second measures its memory."""
    trial = trial_to_measure(run)
    held_before = _held(device)
    model, tokenizer = load_decoder(run)
    train, validation = (prepare(corpus, split, tokenizer) for split in ("train", "validation"))
    model.config.window, model.config.overlap = trial.window, trial.overlap
    evaluation = evaluate(
        model.to(device),
        validation,
        trial.windowing,
        batch_size=trial.batch,
        precision=trial.precision,
        progress=progress,
    )
    trained_of(trial, device).apply(model)
    # The run's own execution: with another budget `auto` might choose another one.
    endless = {"tokens": _WITHOUT_END, "validate_every": _WITHOUT_END}
    endless |= chosen_execution(trial, model.config.shape.parameters, device)._asdict()
    plan = resolve_plan(trial, model.config, chains=trial.batch)
    trainer = Trainer(trial.model_copy(update=endless), model, plan, train, validation, device)
    steps = trainer.run()
    for _ in range(2):
        next(steps)
    assert trainer.measured_peak_bytes is not None
    # CUDA counts all of the process's memory, a CPU's tracker this training alone.
    return TrainingProbe(
        run, trial, fingerprint(tokenizer), evaluation, trainer.measured_peak_bytes - held_before,
        _recorded_memory(run), steps,
    )  # fmt: skip


def _held(device: torch.device) -> int:
    """Bytes on the device before a run. cuBLAS allocates a workspace at the first product on a stream; it is made here,
    so that it does not count for the first run."""
    if device.type != "cuda":
        return 0
    for stream in (torch.cuda.current_stream(), side_stream(torch.cuda.current_device())):
        with torch.cuda.stream(stream):
            square = torch.ones(64, 64, device=device)
            square @ square
            del square
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(device)


def _recorded_memory(run: Path) -> int | None:
    """Peak memory in the run's result; an exported model or a stopped run has none."""
    if not (run / RESULT).exists():
        return None
    with reading(run / RESULT):
        return json.loads((run / RESULT).read_text()).get("measured_peak_memory")
