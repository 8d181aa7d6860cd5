"""A trainer's whole state in one safetensors file: loading it can run no code."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from recur_tune.errors import UserError
from recur_tune.files import whole_folder
from recur_tune.training.loop import Progress, Trainer

FILE = "training_state.safetensors"


def save_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Weights, Adam's moments, random state and progress; replaces the folder's earlier checkpoint whole."""
    trained = trainer.trained  # what is frozen is in the base
    tensors = {f"weight.{name}": parameter.detach() for name, parameter in trained.items()}
    for name, parameter in trained.items():
        for part, value in trainer.optimizer.state[parameter].items():
            tensors[f"optimizer.{part}.{name}"] = value
    tensors["random.cpu"] = torch.get_rng_state()
    if trainer.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(trainer.device)
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    with whole_folder(folder) as partial:
        save_file(tensors, partial / FILE, metadata={"progress": json.dumps(asdict(trainer.progress))})


def load_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Put a freshly built trainer where the saved one was."""
    path = folder / FILE
    try:
        with safe_open(path, framework="pt") as stored:
            progress = Progress(**json.loads(stored.metadata()["progress"]))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
        with torch.no_grad():
            for name, parameter in trainer.trained.items():
                parameter.copy_(tensors[f"weight.{name}"])
                state = trainer.optimizer.state[parameter]
                for part in ("step", "exp_avg", "exp_avg_sq"):
                    value = tensors[f"optimizer.{part}.{name}"]
                    # The fused kernel counts steps on the device that it runs on.
                    state[part] = value.to(trainer.device)
    except FileNotFoundError:
        raise UserError(f"checkpoint: {path} does not exist, so there is nothing to go on from.") from None
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"checkpoint: {path} is damaged or belongs to another model ({reason}).") from error
    trainer.progress = progress
    trainer.stream.seek(progress.epoch, progress.row)
    torch.set_rng_state(tensors["random.cpu"])
    if trainer.device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random.cuda"], trainer.device)
