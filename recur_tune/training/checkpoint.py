"""Checkpoint: a trainer's whole state in one safetensors file with a digest, so that loading runs no code and finds
flipped bits. The checkpoint before the latest is kept too, in case the latest is damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from recur_tune.common.errors import UserError
from recur_tune.common.files import storage_fault, whole_folder
from recur_tune.training.loop import Progress, Trainer

FILE = "training_state.safetensors"
BEFORE = "training_state.before.safetensors"
_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")  # of a parameter
_SEEDS = 2**62


class DamagedCheckpoint(UserError):
    """Every checkpoint of a folder is damaged."""


def save_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Save weights, Adam's moments, calibration, RNG states and progress; the folder's latest checkpoint becomes the
    one before.

    All workers call this, since each may have a part of the moments; the first one writes.
    """
    state = trainer.optimizer.gathered_state()
    if trainer.rank:
        return
    trained = trainer.trained  # frozen weights are the base's
    tensors = {f"weight.{name}": parameter.detach() for name, parameter in trained.items()}
    for name, parameter in trained.items():
        for part, value in state[parameter].items():
            tensors[f"optimizer.{part}.{name}"] = value
    tensors |= {f"measured.{name}": buffer for name, buffer in trainer.measured.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if trainer.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(trainer.device)
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    progress = json.dumps(asdict(trainer.progress))
    with whole_folder(folder) as partial:
        save_file(tensors, partial / FILE, metadata={"progress": progress, "digest": digest_of(progress, tensors)})
        if (folder / FILE).exists():
            _link(folder / FILE, partial / BEFORE)


def load_checkpoint(trainer: Trainer, folder: Path) -> str:
    """Restore a new trainer from the newest undamaged checkpoint; gives a sentence about a damaged one.

    Where all are damaged the trainer is unchanged.
    """
    refusals: list[str] = []
    for name in (FILE, BEFORE):
        if refusals and not (folder / name).exists():
            continue
        try:
            progress, tensors = _read(trainer, folder / name)
        except DamagedCheckpoint as refusal:
            refusals.append(str(refusal))
            continue
        _restore(trainer, progress, tensors)
        return f"{refusals[0]} The one before it is whole, after {progress.tokens} tokens." if refusals else ""
    raise DamagedCheckpoint(refusals[0])


def digest_of(progress: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of progress and of every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(progress.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(trainer: Trainer, path: Path) -> tuple[Progress, dict[str, torch.Tensor]]:
    """Read a file, once its digest and the shapes of its tensors are checked."""
    try:
        with safe_open(path, framework="pt") as stored:
            said = stored.metadata()
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
        # Earlier versions wrote no digest, and progress alone.
        if set(said) != {"progress"} and said["digest"] != digest_of(said["progress"], tensors):
            raise ValueError("its digest is not that of its content")
        for name, parameter in trainer.trained.items():
            for part in ("weight", "optimizer.exp_avg", "optimizer.exp_avg_sq"):
                if tensors[f"{part}.{name}"].shape != parameter.shape:
                    raise ValueError(f"{part}.{name} has another shape")
        for name, buffer in trainer.measured.items():
            if tensors[f"measured.{name}"].shape != buffer.shape:
                raise ValueError(f"measured.{name} has another shape")
        return Progress(**json.loads(said["progress"])), tensors
    except FileNotFoundError:
        raise DamagedCheckpoint(f"checkpoint: {path} does not exist, so there is nothing to resume from.") from None
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        if fault := storage_fault(error):  # the file may be intact and the disk not
            raise fault from error
        reason = " ".join(str(error).split())[:160]
        raise DamagedCheckpoint(f"checkpoint: {path} is damaged or belongs to another model ({reason}).") from error


def _restore(trainer: Trainer, progress: Progress, tensors: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in trainer.trained.items():
            parameter.copy_(tensors[f"weight.{name}"])
        for name, buffer in trainer.measured.items():
            buffer.copy_(tensors[f"measured.{name}"])
    trainer.optimizer.load_gathered_state(
        {
            parameter: {part: tensors[f"optimizer.{part}.{name}"] for part in _ADAM_STATE}
            for name, parameter in trainer.trained.items()
        }
    )
    trainer.progress = progress
    trainer.stream.seek(progress.epoch, progress.row)
    if trainer.rank:  # the states are the first worker's; dropout of the others is to differ from it
        torch.manual_seed(hash((trainer.config.seed, trainer.rank, progress.step)) % _SEEDS)
        return
    torch.set_rng_state(tensors["random.cpu"])
    if trainer.device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random.cuda"], trainer.device)


def _link(file: Path, other: Path) -> None:
    """Hard-link a file, so that neither name is ever missing; copy it where a file system has no links."""
    try:
        os.link(file, other)
    except OSError:
        shutil.copyfile(file, other)
