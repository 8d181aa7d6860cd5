"""A trial on a worker: trains it, saves checkpoints and reports.

The same code runs in Ray Tune's own actor and in each of several workers of Ray Train. It continues from the checkpoint
in the trial's folder, if there is one.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from recur_tune.bptt.collectives import collective, worker_count, worker_rank
from recur_tune.cluster.connection import NODE_NAME, node_name
from recur_tune.cluster.process_names import call_this_process, trial_name
from recur_tune.common.errors import StorageFault, UserError
from recur_tune.common.files import storage_fault, whole_folder, write_text
from recur_tune.common.throttle import Every, Throttled
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.device_flops import device_flops
from recur_tune.models.pretrained import save_model
from recur_tune.ops.out_of_memory import is_out_of_memory
from recur_tune.search.record.directory import COMPILED, LEAVING, MODEL, STOP
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.recovery import note_report
from recur_tune.search.record.state import CROWDED, STORAGE
from recur_tune.search.run.messages import Message, ending
from recur_tune.training import RESUME
from recur_tune.training.checkpoint import DamagedCheckpoint, load_checkpoint, save_checkpoint
from recur_tune.training.loop import Diverged, Report, Trainer
from recur_tune.training.setup import set_up

_SECONDS_BETWEEN_REPORTS = 5.0  # validations are always reported
_SECONDS_BETWEEN_LOOKS = 0.5  # at the request to stop, which lies on a file system


class Moved(Exception):
    """The trial has saved a checkpoint and continues on another node, since its own will leave."""


class RefusedByAll(UserError):
    """What one of several workers refuses before training; all of them know it."""


def use_cores(cpus: float) -> None:
    """One thread a core, and one at least; torch keeps this number per thread."""
    torch.set_num_threads(max(1, int(cpus)))


def run_trial(job: Message, report: Callable[[Message], None]) -> None:
    """Train a trial and report on the way; the last message says how it ended.

    An error ends this trial alone. A storage fault pauses the trial and with it the search, since all trials write
    there. A diverged loss or a refused configuration is reported. Any other error is reported and raised, so that the
    process is replaced.

    Of several workers the first reports how training goes, once it has saved its files. An error is raised by whichever
    worker has it, and Ray Train starts all of them again, since the others wait for it. It is reported only where it
    would happen again: the storage failed, the memory did not suffice, or what was read is refused.
    """
    folder = Path(job["folder"])
    config = TrialConfig(**job["trial"])
    # Compiled kernels serve all trials of the same hidden size, on every node.
    os.environ["TRITON_CACHE_DIR"] = str(folder.parent.parent / COMPILED)
    share = job.get("tensors_share")
    # Once a worker is lost, Ray Train ends the others' process group, maybe before they have told their error.
    is_first, several = worker_rank() == 0, _several_workers()
    try:
        if share is not None:
            _bound_memory(share)
        for message in _train(config, folder, job.get("split", ""), job.get("shard", False)):
            if is_first:
                note_report(folder, message)
                report(message)
    except Moved:
        if is_first:
            report({"moved": True})
        if not several:  # their actor raises once it hears of it, when the first of them has saved
            raise  # Ray starts the trial again where there is room
    except Exception as error:
        if fault := storage_fault(error):
            report(ending("paused", str(fault), STORAGE))
            if several:
                raise  # the others wait for this one
            return
        if isinstance(error, UserError):
            report(ending("failed", str(error), "diverged" if isinstance(error, Diverged) else "refused"))
            if several and not isinstance(error, Diverged | RefusedByAll):
                raise  # the others wait for this one
            return
        if folder.is_dir():
            write_text(folder / "error.txt", traceback.format_exc())
        outcome = outcome_of(error, folder, shares_card=share is not None)
        if outcome["state"] == "infeasible" or not several:
            report(outcome | {"replace_actor": True})
        raise
    finally:
        _forget_the_trial()


def _train(config: TrialConfig, folder: Path, split: str, shard: bool) -> Iterator[Message]:
    FlagFile(folder / STOP).create()
    stop = Throttled(lambda: FlagFile(folder.parent.parent / STOP).is_set(), _SECONDS_BETWEEN_LOOKS)
    over = Throttled(lambda: FlagFile(folder / STOP).is_set(), _SECONDS_BETWEEN_LOOKS)
    if not _several_workers() and stop():
        yield ending("paused", "the search was asked to stop")
        return
    _start_clean()
    call_this_process(trial_name(folder))
    trainer, tokenizer = _set_up_together(config, shard)
    if not (folder / RESUME).is_dir():
        yield from ({"notice": remark} for remark in trainer.stream.remarks)
    elif damage := _go_on(trainer, folder / RESUME):
        yield {"notice": damage}
    _check_same_checkpoint(trainer)
    node = os.environ.get(NODE_NAME)
    leaving = Throttled(
        lambda: bool(node) and FlagFile(folder.parent.parent / LEAVING / str(node)).is_set(), _SECONDS_BETWEEN_LOOKS
    )
    due = Every(_SECONDS_BETWEEN_REPORTS)
    titled = Every(_SECONDS_BETWEEN_LOOKS)  # Ray sets the title of its processes at every call
    stopwatch = Stopwatch()
    untrained_told = False
    for step in stopwatch.around(trainer.run()):
        if titled():
            call_this_process(trial_name(folder))
        stopping, ended, moving, telling = _agree(trainer, stop(), over(), leaving(), due())
        if ended:  # pruned or paused, as the log has it already
            return
        stopping = stopping and not step.last
        if trainer.rank == 0 and not folder.is_dir():
            raise StorageFault(f"{folder} is gone: it was moved or deleted while its trial ran.")
        if step.last and trainer.rank == 0:
            with whole_folder(folder / MODEL) as partial:
                save_model(trainer.model, tokenizer, partial)
        elif not step.last and (step.validation is not None or stopping or moving):
            save_checkpoint(trainer, folder / RESUME)
        if telling or stopping or step.last or step.validation is not None:
            message = _message(step, trainer) | {"training_seconds": round(stopwatch.seconds, 3)}
            if trainer.untrained is not None and not untrained_told:
                untrained_told = True
                message["untrained"] = trainer.untrained
            if step.last:
                scores = {split: _score(trainer, tokenizer, split)} if split else {}
                message |= {"state": "complete", "scores": scores}
            elif stopping:
                message |= {"state": "paused", "reason": "the search was asked to stop"}
            yield message
        if stopping:
            return
        if moving and not step.last:
            raise Moved(node)


def _set_up_together(config: TrialConfig, shard: bool) -> tuple[Trainer, PreTrainedTokenizerBase]:
    """Set a trial up. What one of several workers refuses, all of them refuse, so that none waits for another."""
    if not _several_workers():
        return set_up(config)
    made, refusal = None, ""
    try:
        made = set_up(config, shard=shard)
    except UserError as error:
        refusal = str(error)
    refusals: list[str] = [""] * dist.get_world_size()
    collective(dist.all_gather_object, refusals, refusal)
    if made is None or any(refusals):
        raise RefusedByAll(next(filter(None, refusals)))
    return made


def _go_on(trainer: Trainer, folder: Path) -> str:
    """Continue from the checkpoint. Where it is damaged, continue from the one before it or begin anew; gives a
    sentence about that, empty where all is well."""
    try:
        return load_checkpoint(trainer, folder)
    except DamagedCheckpoint as damage:
        return f"{damage} There is none before it, and the trial begins anew."


def _check_same_checkpoint(trainer: Trainer) -> None:
    """Raise where a worker has read another checkpoint: a network file system shows files late."""
    if not _several_workers():
        return
    tokens: list[int] = [0] * dist.get_world_size()
    collective(dist.all_gather_object, tokens, trainer.progress.tokens)
    if len(set(tokens)) > 1:
        raise RuntimeError(f"the workers have read different checkpoints, of {', '.join(map(str, tokens))} tokens")


def _score(trainer: Trainer, tokenizer: PreTrainedTokenizerBase, split: str) -> dict[str, float]:
    """The metrics of the trained model on a whole split, with the windows of its training."""
    config, task = trainer.config, trainer.task
    whole = task.prepare(config.corpus, split, tokenizer)  # type: ignore[arg-type]
    return task.evaluate(trainer.model, whole, config.windowing, config.batch, config.precision).metrics()


class Stopwatch:
    """Measures the time of steps and validations, without that of checkpoints and reports."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, steps: Iterator[Report]) -> Iterator[Report]:
        """The same steps, timed."""
        started = time.perf_counter()
        for step in steps:
            self.seconds += time.perf_counter() - started
            yield step
            started = time.perf_counter()


def _agree(trainer: Trainer, *answers: bool) -> list[bool]:
    """Each answer, True where any worker says so: all workers report and stop at the same step."""
    if trainer.workers == 1:
        return list(answers)
    shared = torch.tensor(answers, dtype=torch.int32, device=trainer.device)
    collective(dist.all_reduce, shared, op=dist.ReduceOp.MAX)
    return [bool(answer) for answer in shared.tolist()]


def _message(step: Report, trainer: Trainer) -> Message:
    return {
        "tokens": step.tokens,
        "loss": step.loss,
        "tokens_per_second": round(step.tokens_per_second),
        "validation": step.validation,
        "measured_peak_memory": trainer.measured_peak_bytes,
        "device_flops": device_flops(trainer.device, trainer.config.precision),
        "worker": f"{node_name()}:{os.getpid()}",
    }


def outcome_of(error: Exception, folder: Path, shares_card: bool = False) -> Message:
    """The end that an error leads to. Out of memory is infeasible, or a pause on a shared GPU, where the trial may get
    a whole one; anything else is a failure."""
    on_cpu = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
    on_card = is_out_of_memory(error)
    if on_card and shares_card:
        return ending(
            "paused", "it needs more GPU memory than was predicted, and continues with a GPU to itself", CROWDED
        )
    if on_card or on_cpu:
        return ending("infeasible", "out of memory on its device", "memory")
    return ending("failed", f"{type(error).__name__}: {error} (see {folder / 'error.txt'})", "error")


def _start_clean() -> None:
    """Exclude what was imported before the first trial from garbage collection, which then takes milliseconds instead
    of a fifth of a second. Only that: a trial's own objects must stay collectable."""
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _bound_memory(share: float) -> None:
    """Bound this process's tensors to its share of the GPU: a trial that needs more than was predicted then fails
    itself, instead of a neighbour.

    Expandable segments leave a twentieth less memory unused. Torch reads the setting at its first CUDA allocation.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # its former name, which may have other settings
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


def _forget_the_trial() -> None:
    """Free a trial's memory for the next one, in the thread that allocated it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _several_workers() -> bool:
    return worker_count() > 1
