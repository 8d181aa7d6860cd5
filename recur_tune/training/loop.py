"""The training loop: model, tokens and process group in, a report after every step out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.collectives import broadcast, worker_count, worker_rank
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.optimizer import make_optimizer, set_learning_rate
from recur_tune.bptt.plan import Plan, chosen_execution
from recur_tune.bptt.step import train_step
from recur_tune.common.errors import UserError
from recur_tune.config.batch_share import check_share
from recur_tune.config.trial import TrialConfig
from recur_tune.data.batches import WindowBatch
from recur_tune.models import Windowed
from recur_tune.models.trained import lay_frozen_together
from recur_tune.tasks.seam import TaskCode
from recur_tune.training.calibration import Calibration


class Diverged(UserError):
    """The loss or the gradient is not finite."""


@dataclass(frozen=True)
class Report:
    """One step, and its validation where one was due."""

    step: int
    tokens: int  # scored so far: what runs are compared and resumed by
    loss: float  # nats per token, or per question, in this step, over all workers
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    validation: dict[str, float] | None = None
    best: bool = False  # this validation is the best so far
    last: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For JSON lines and trackers."""
        return asdict(self)


@dataclass
class Progress:
    """The part of a run's state that is not tensors."""

    step: int = 0
    tokens: int = 0
    epoch: int = 0
    row: int = 0
    best_loss: float = math.inf
    validations_since_best: int = 0


class Trainer:
    """A training run. It can be stopped after any report and resumed from its checkpoint, bit-identical on a CPU.

    Attributes:
        untrained: The validation before the first step, once a new run has begun; some states help without training.
        measured_peak_bytes: The peak memory of the second step, once it is measured.
    """

    def __init__(
        self,
        config: TrialConfig,
        model: Windowed,
        plan: Plan,
        train: Any,
        validation: Any,
        device: torch.device,
        shard: bool = False,
    ) -> None:
        self.workers, self.rank = worker_count(), worker_rank()
        check_share(config.batch, (self.workers,))
        self.config, self.device, self.validation = config, device, validation
        self.model = model.to(device).train()
        lay_frozen_together(self.model)
        self.optimizer = make_optimizer(
            self.model, config.learning_rate, config.weight_decay, config.recurrence_rate, config.lora_rate, shard
        )
        execution = chosen_execution(config, self.model.config.shape.parameters, device)
        self.chain = Chain(self.model, plan, execution, self.optimizer.shards)
        self.task: TaskCode = config.task.build(config.task_spec)
        self.stream = self.task.stream(
            train, config.windowing, config.bptt_windows, config.batch, config.seed, self.rank, self.workers
        )
        self.calibration = Calibration(config, self.model, train)
        norms = [module for module in self.model.modules() if isinstance(module, nn.BatchNorm1d)]
        self._running_statistics = [buffer for norm in norms for buffer in norm.buffers()]
        self.progress = Progress()
        self.measured_peak_bytes: int | None = None
        self.untrained: dict[str, float] | None = None
        self._steps_here = 0
        # Workers have different dropout, and none repeats the random numbers of the initial weights.
        torch.manual_seed(config.seed * 1000 + self.rank)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Trainable parameters, by name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @property
    def measured(self) -> dict[str, torch.Tensor]:
        """What is measured while it trains, by name: the recurrence's calibrated buffers, running statistics of a
        body."""
        of_recurrence = {} if self.model.recurrence is None else dict(self.model.recurrence.named_buffers())
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        whole = self.model.state_dict()
        of_body = {name for name in whole.keys() - parameters.keys() if not name.startswith("recurrence.")}
        return of_recurrence | {name: whole[name] for name in sorted(of_body)}

    def run(self, stage: Callable[[str], None] = lambda text: None) -> Iterator[Report]:
        """Train until the budget is spent or validation stops improving; `stage` is told of validations."""
        config, progress = self.config, self.progress
        broadcast([*self.model.parameters(), *self.model.buffers()])
        if progress.step == 0:
            self.calibration.before(0)
            stage("validating before the first step …")
            self.untrained = self._scores()
        while progress.tokens < config.tokens and not self._out_of_patience():
            started = time.perf_counter()
            if progress.step:
                self.calibration.before(progress.step)
            batch = next(self.stream).to(self.device)
            rate = self._learning_rate()
            set_learning_rate(self.optimizer, rate)

            with self._measured_memory(batch):
                loss, norm = train_step(
                    self.chain, self.optimizer, batch, config.clip_norm, config.precision,
                    proceed=self._check_finite,
                )  # fmt: skip

            before = progress.tokens
            progress.step += 1
            progress.tokens += batch.step_scored
            progress.epoch, progress.row = self.stream.epoch, self.stream.row
            speed = batch.step_scored / (time.perf_counter() - started)
            validation, best = None, False
            if self._validation_due(before):
                stage("validating …")
                validation = self._validate()
                best = validation["loss"] < progress.best_loss
                progress.best_loss = min(progress.best_loss, validation["loss"])
                progress.validations_since_best = 0 if best else progress.validations_since_best + 1
            last = progress.tokens >= config.tokens or self._out_of_patience()
            yield Report(
                progress.step, progress.tokens, float(loss), rate, float(norm), speed,
                validation, best, last,
            )  # fmt: skip

    @contextmanager
    def _measured_memory(self, batch: WindowBatch) -> Iterator[None]:
        """Measure the peak of the second step, the first with optimiser state: by CUDA's own counter, elsewhere by
        tracking tensors."""
        self._steps_here += 1
        if self._steps_here != 2:
            yield
        elif self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            yield
            self.measured_peak_bytes = torch.cuda.max_memory_allocated(self.device)
        else:
            with MemoryTracker() as tracker:
                tracker.hold_training(self.model, self.optimizer, batch)
                yield
            self.measured_peak_bytes = tracker.peak

    def _learning_rate(self) -> float:
        config = self.config
        rate = config.learning_rate * min(1.0, (self.progress.step + 1) / max(1, config.warmup))
        if config.decay == "cosine":
            rate *= 0.5 + 0.5 * math.cos(math.pi * min(1.0, self.progress.tokens / config.tokens))
        return rate

    def _validation_due(self, tokens_before: int) -> bool:
        interval, now = self.config.validation_interval, self.progress.tokens
        return now // interval > tokens_before // interval or now >= self.config.tokens

    def _validate(self) -> dict[str, float]:
        metrics = self._scores()
        self._check_finite(metrics["loss"])
        return metrics

    def _scores(self) -> dict[str, float]:
        config = self.config
        broadcast(self._running_statistics)  # those of a worker's own chains, and all have to score the same model
        metrics = self.task.evaluate(
            self.model, self.validation, config.windowing, batch_size=config.batch, precision=config.precision
        ).metrics()
        if self.device.type == "cuda":  # for other processes on this GPU; a CUDA graph has its own pool
            torch.cuda.empty_cache()
        return metrics

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.validations_since_best

    def _check_finite(self, *values: torch.Tensor | float) -> None:
        """Checked before a weight changes, so that no checkpoint holds a diverged model."""
        if not all(math.isfinite(value) for value in values):
            raise Diverged(
                f"learning_rate: {self.config.learning_rate} made training diverge after {self.progress.step} steps "
                f"({self.progress.tokens} tokens): the loss or its gradient is no longer finite; "
                "try a smaller rate or more warmup_steps."
            )
