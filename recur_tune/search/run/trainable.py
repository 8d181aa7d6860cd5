"""One trial on a worker: the same training in two lanes.

One worker trains in Ray Tune's own actor, which is used again for the next trial. Several train with DDP, in a group
that the actor keeps. Both read a trial's folder: a checkpoint in it is gone on from, so a restart finds its own work
whoever died.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from recur_tune.common.errors import StorageFault, UserError
from recur_tune.common.files import storage_fault, whole_folder, write_text
from recur_tune.common.throttle import Every, Throttled
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.device_flops import device_flops
from recur_tune.models.pretrained import save_model
from recur_tune.search.record.directory import COMPILED, LEAVING, MODEL, STOP
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.state import CROWDED, STORAGE
from recur_tune.sites.ray.cluster import NODE_NAME
from recur_tune.sites.ray.process_names import call_this_process, trial_name
from recur_tune.training.checkpoint import DamagedCheckpoint, load_checkpoint, save_checkpoint
from recur_tune.training.loop import Diverged, Report, Trainer
from recur_tune.training.run_folder import RESUME
from recur_tune.training.setup import set_up

_OUTCOME = "outcome.json"
_SECONDS_BETWEEN_REPORTS = 5.0  # for whoever watches; validations are always reported
_SECONDS_BETWEEN_LOOKS = 0.5  # at the request to stop, which lies on a file system
_NO_MEMORY = ("CUDA error: out of memory", "STATUS_ALLOC_FAILED")  # what is not a tensor's: kernels, cuBLAS, a graph

Message = dict[str, Any]


class Moved(Exception):
    """The trial has saved itself and goes on elsewhere: its node will be gone soon."""


def use_cores(cpus: float) -> None:
    """One thread a core, and one at least; torch keeps the number by the thread that sets it."""
    torch.set_num_threads(max(1, int(cpus)))


def fault_of_a_worker(errors: list[Exception]) -> StorageFault | None:
    """What a disk did to one of several workers; the others only lost a peer."""
    return next((fault for fault in map(storage_fault, errors) if fault), None)


def has_moved(errors: list[Exception]) -> bool:
    """Whether workers have left their node, and not failed."""
    return any(isinstance(error, Moved) for error in errors)


def run_trial(job: dict[str, Any], report: Callable[[Message], None]) -> None:
    """Train a trial and report on the way; its last message says how it ended.

    Whatever goes wrong ends this trial alone, but for a disk that does not take its files: that pauses it, and the
    search with it, since all others write there too. After anything but a diverged loss or a refused configuration the
    process is not trusted with another trial: the error is raised once it has been reported. One of several workers
    cannot report alone; it raises, and all of them are started again, unless its memory was too small: that would be so
    again, and it leaves word.
    """
    folder = Path(job["folder"])
    if (folder / _OUTCOME).exists():  # a worker of an earlier attempt met its end alone and left word
        report(json.loads((folder / _OUTCOME).read_text()))
        return
    config = TrialConfig(**job["trial"])
    # What one trial has compiled serves every other of its hidden size, on whatever node.
    os.environ["TRITON_CACHE_DIR"] = str(folder.parent.parent / COMPILED)
    share = job.get("tensors_share")
    try:
        if share is not None:
            _bound_memory(share)
        for message in _train(config, folder, job.get("split", "")):
            report(message)
    except Moved:
        report({"moved": True})
        raise  # whoever started the trial starts it again, where there is room
    except Exception as error:
        if fault := storage_fault(error):
            if _several_workers():
                raise  # all of them go; whoever waits for them says why
            report(ending("paused", str(fault), STORAGE))
            return
        if isinstance(error, UserError):
            report(ending("failed", str(error), "diverged" if isinstance(error, Diverged) else "refused"))
            return
        write_text(folder / "error.txt", traceback.format_exc())
        outcome = outcome_of(error, folder, shares_card=share is not None) | {"replace_actor": True}
        if not _several_workers():
            report(outcome)
        elif outcome["state"] == "infeasible":
            write_text(folder / _OUTCOME, json.dumps(outcome))
        raise
    finally:
        _forget_the_trial()


def _train(config: TrialConfig, folder: Path, split: str = "") -> Iterator[Message]:
    FlagFile(folder / STOP).create()
    stop = Throttled(lambda: FlagFile(folder.parent.parent / STOP).is_set(), _SECONDS_BETWEEN_LOOKS)
    over = Throttled(lambda: FlagFile(folder / STOP).is_set(), _SECONDS_BETWEEN_LOOKS)
    if not _several_workers() and stop():
        yield ending("paused", "the search was asked to stop")
        return
    _start_clean()
    call_this_process(trial_name(folder))
    trainer, tokenizer = set_up(config)
    if not (folder / RESUME).is_dir():
        yield from ({"notice": remark} for remark in trainer.stream.remarks)
    elif damage := _go_on(trainer, folder / RESUME):
        yield {"notice": damage}
    node = os.environ.get(NODE_NAME)
    leaving = Throttled(
        lambda: bool(node) and FlagFile(folder.parent.parent / LEAVING / str(node)).is_set(), _SECONDS_BETWEEN_LOOKS
    )
    due = Every(_SECONDS_BETWEEN_REPORTS)
    titled = Every(_SECONDS_BETWEEN_LOOKS)  # Ray renames its processes whenever they are called
    stopwatch = Stopwatch()
    for step in stopwatch.around(trainer.run()):
        if titled():
            call_this_process(trial_name(folder))
        stopping, ended, moving, telling = _agree(trainer, stop(), over(), leaving(), due())
        if ended:  # by others that were better; the log knows
            return
        stopping = stopping and not step.last
        if trainer.rank == 0:
            if step.last:
                with whole_folder(folder / MODEL) as partial:
                    save_model(trainer.model, tokenizer, partial)
            elif step.validation is not None or stopping or moving:
                save_checkpoint(trainer, folder / RESUME)
        if telling or stopping or step.last or step.validation is not None:
            message = _message(step, trainer) | {"training_seconds": round(stopwatch.seconds, 3)}
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


def _go_on(trainer: Trainer, folder: Path) -> str:
    """Put a trial where it was. A damaged checkpoint is not its fault, and costs it the steps since the one before, or
    all of them; says so in words."""
    try:
        return load_checkpoint(trainer, folder)
    except DamagedCheckpoint as damage:
        return f"{damage} There is none before it, and the trial begins anew."


def _score(trainer: Trainer, tokenizer: PreTrainedTokenizerBase, split: str) -> dict[str, float]:
    """The metrics of the trained model on a whole split, read as in training."""
    config, task = trainer.config, trainer.task
    whole = task.prepare(config.corpus, split, tokenizer)  # type: ignore[arg-type]
    return task.evaluate(trainer.model, whole, config.windowing, config.batch, config.precision).metrics()


class Stopwatch:
    """The time that training itself takes: steps and validations, not what is made of them."""

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
    """What any worker thinks: reports and stops are for all of them at the same step."""
    if trainer.workers == 1:
        return list(answers)
    shared = torch.tensor(answers, dtype=torch.int32, device=trainer.device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return [bool(answer) for answer in shared.tolist()]


def _message(step: Report, trainer: Trainer) -> Message:
    return {
        "tokens": step.tokens,
        "loss": step.loss,
        "tokens_per_second": round(step.tokens_per_second),
        "validation": step.validation,
        "measured_peak_memory": trainer.measured_peak_bytes,
        "device_flops": device_flops(trainer.device, trainer.config.precision),
        "worker": f"{os.environ.get(NODE_NAME) or socket.gethostname()}:{os.getpid()}",
    }


def ending(state: str, reason: str, cause: str = "") -> Message:
    """An end about which there are no numbers."""
    return {"state": state, "reason": " ".join(reason.split()), "cause": cause}


def outcome_of(error: Exception, folder: Path, shares_card: bool = False) -> Message:
    """Memory that was not there is a limit that the prediction did not see, but on a shared card there may be more of
    it; everything else is a failure."""
    on_cpu = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
    on_card = isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)
    if on_card and shares_card:
        return ending("paused", "it needs more of a card than was predicted, and goes on with one to itself", CROWDED)
    if on_card or on_cpu:
        return ending("infeasible", "out of memory on its device", "memory")
    return ending("failed", f"{type(error).__name__}: {error} (see {folder / 'error.txt'})", "error")


def _start_clean() -> None:
    """What was imported before the first trial stays for good; left out of every later collection, that takes
    milliseconds instead of a fifth of a second. Only that: what a trial leaves must stay collectable."""
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _bound_memory(share: float) -> None:
    """Let tensors of this process take no more of the card: whoever needs more than was predicted for it then fails
    alone, and not whichever of its neighbours asks next.

    Expandable segments keep a twentieth less that is not used. Torch looks for them when it first asks CUDA for memory.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # its former name, which somebody may have given other settings
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


def _forget_the_trial() -> None:
    """Leave nothing of it to the next trial in this process, and do so in the thread that made it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _several_workers() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
