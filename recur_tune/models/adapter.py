"""Adapters: LoRA's matrices in peft's files, written and read without peft; a recurrence travels beside them.

adapter_config.json, adapter_model.safetensors    what peft reads and writes
recurrence.json, recurrence.safetensors           windows, the base's fingerprint, and the recurrence's fields and
                                                  weights where there is one
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from recur_tune.common.errors import UserError
from recur_tune.common.lora import LoraSpec
from recur_tune.models.base_fingerprint import base_fingerprint
from recur_tune.models.windowed import Windowed
from recur_tune.ops.lora import LoraLayer
from recur_tune.recurrences.registry import MECHANISMS, NONE, canonical, of_settings, settings_of

LORA_FILE = "lora.safetensors"  # beside a merged model: the matrices that were merged
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
RECURRENCE, RECURRENCE_WEIGHTS = "recurrence.json", "recurrence.safetensors"
_PREFIX = "base_model.model."
_MATRICES = {"lora_A.weight": "down", "lora_B.weight": "up"}
# Settings of peft that change what the matrices mean, and the word for each.
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "use_qalora": "QA-LoRA",
    "use_bdlora": "BD-LoRA",
    "lora_bias": "biases of LoRA (lora_bias)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "arrow_config": "Arrow",
    "rank_pattern": "several ranks (rank_pattern)",
    "alpha_pattern": "several alphas (alpha_pattern)",
    "modules_to_save": "modules trained whole (modules_to_save)",
    "target_parameters": "single parameters (target_parameters)",
    "trainable_token_indices": "trained tokens (trainable_token_indices)",
    "layer_replication": "replicated layers (layer_replication)",
}
_CHANGES_BASE = ("pissa", "olora", "loftq", "corda")  # ways to begin that change the base's weights too


def write_lora(model: Windowed, folder: Path) -> None:
    """Write a model's LoRA matrices beside its merged weights."""
    layers = {name: one for name, one in model.named_modules() if isinstance(one, LoraLayer)}
    tensors, first = {}, next(iter(layers.values()))
    for name, layer in layers.items():
        for theirs, ours in _MATRICES.items():
            tensor = getattr(layer, ours).detach().float().cpu().contiguous()
            tensors[f"{_PREFIX}{name.removesuffix('lora')}{theirs}"] = tensor
    rank = len(first.down)
    inputs_first = any(projection.inputs_first for projection in model.body.projections)
    said = {"r": rank, "lora_alpha": first.scaling * rank, "lora_dropout": first.dropout}
    said |= {"fan_in_fan_out": inputs_first}
    beside = {"lora": json.dumps(said), "base": json.dumps(base_fingerprint(model))}
    save_file(tensors, folder / LORA_FILE, metadata={"format": "pt", **beside})


def write_adapter(model: Path, base: str, folder: Path) -> None:
    """Write an adapter that peft opens on the stock base, from a folder of a model that was trained by LoRA."""
    with safe_open(model / LORA_FILE, framework="pt") as stored:
        said, of_base = (json.loads(stored.metadata().get(name, "{}")) for name in ("lora", "base"))
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
    modules = {".".join(_module(name).split(".")[-2:]) for name in tensors}  # "c_proj" alone would be two of GPT-2's
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "bias": "none",
        "inference_mode": True, "target_modules": sorted(modules), **said,
    }  # fmt: skip
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    ours = json.loads((model / "config.json").read_text())
    if ours.get("recurrence"):
        with safe_open(model / "model.safetensors", framework="pt") as stored:
            names = [name for name in stored.keys() if name.startswith("recurrence.")]  # noqa: SIM118
            own = {name.removeprefix("recurrence."): stored.get_tensor(name) for name in names}
        save_file(own, folder / RECURRENCE_WEIGHTS, metadata={"format": "pt"})
    beside = {"base": of_base} | {name: ours.get(name) for name in ("recurrence", "window", "overlap")}
    (folder / RECURRENCE).write_text(json.dumps(beside, indent=2, sort_keys=True) + "\n")


def adapter_fields(folder: Path) -> dict[str, Any]:
    """A trial's fields that an adapter decides; what is not supported of it is refused."""
    settings = _settings(folder)
    rank, alpha = settings["r"], float(settings.get("lora_alpha", 8))
    if settings.get("use_rslora"):  # which divides by the root of the rank
        alpha *= math.sqrt(rank)
    modules = {_module(name) for name in _names(folder / WEIGHTS, folder)}
    parts = {"mlp" if ".mlp." in module else "attention" for module in modules}
    fields: dict[str, Any] = {
        "trainable": "lora",
        "lora_rank": rank,
        "lora_alpha": alpha,
        "lora_targets": "all" if len(parts) > 1 else parts.pop(),
        "lora_dropout": float(settings.get("lora_dropout") or 0.0),
    }
    if (folder / RECURRENCE).is_file():
        beside, kind, spec = _recurrence_of(folder)
        fields |= {"recurrence": kind, **(spec.model_dump() if spec else {})}
        fields |= {name: beside[name] for name in ("window", "overlap") if beside.get(name) is not None}
    return fields


def _recurrence_of(folder: Path) -> tuple[dict[str, Any], str, BaseModel | None]:
    """What stands about the recurrence beside an adapter: all of it, its mechanism or that there is none, and the
    mechanism's fields."""
    file = folder / RECURRENCE
    try:
        beside = json.loads(file.read_text())
        if beside["recurrence"] is None:
            return beside, NONE, None
        kind = canonical(beside["recurrence"].get("kind"))
        if kind in MECHANISMS:
            return beside, kind, of_settings(beside["recurrence"])[1]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"adapter: {file} cannot be read; get its files again.") from None
    raise UserError(f"adapter: {folder} has a recurrence {kind!r}, which is not installed; install it.")


def recurrence_left_behind(folder: Path, spec: BaseModel | None) -> str | None:
    """A sentence where a trial does not take over the recurrence beside its adapter."""
    if not (folder / RECURRENCE).is_file():
        return None
    _, kind, theirs = _recurrence_of(folder)
    if theirs is None or (spec is not None and settings_of(theirs) == settings_of(spec)):
        return None
    other = "the trial has none" if spec is None else "the trial's is another, or has other fields"
    return f"adapter: the recurrence {kind!r} beside {folder} is left behind, since {other}; its matrices are kept."


def other_base(folder: Path, model: Windowed, base: str) -> str | None:
    """A sentence where an adapter was trained beside other weights than a model's. Only one that was exported here has
    a fingerprint."""
    if not (folder / RECURRENCE).is_file():
        return None
    theirs, own = _recurrence_of(folder)[0].get("base") or {}, base_fingerprint(model)
    if all(own[part] == theirs[part] for part in own.keys() & theirs.keys()):
        return None
    return f"adapter: {folder} was trained beside other weights than those of {base}; give the base that it was for."


def load_adapter(folder: Path, model: Windowed, lora: LoraSpec, base: str) -> None:
    """Load an adapter into a model that learns by LoRA. Targets that it does not have begin unchanged; its recurrence
    is taken where the model has the same."""
    said = adapter_fields(folder)
    for field, ours in (("lora_rank", lora.rank), ("lora_alpha", lora.alpha)):
        if not math.isclose(said[field], ours):
            raise UserError(f"{field}: {ours:g} is not that of {folder}, which has {said[field]:g}; choose that.")
    layers = {name.removesuffix(".lora"): one for name, one in model.named_modules() if isinstance(one, LoraLayer)}
    known, tensors = dict(model.named_modules()), _tensors(folder / WEIGHTS, folder)
    for name in tensors:
        module = _module(name)
        if module not in known:
            raise UserError(f"adapter: {folder} is for another base: it changes {module}, which {base} does not have.")
        if module not in layers:
            raise UserError(
                f"adapter: {folder} changes {module}, which lora_targets {lora.targets!r} does not; matrices of "
                "attention and MLPs alone are supported (attention, mlp, all)."
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            own = getattr(layers[_module(name)], _MATRICES[name.removeprefix(f"{_PREFIX}{_module(name)}.")])
            if own.shape != tensor.shape:
                raise UserError(
                    f"adapter: {folder} is for another base: its matrices of {_module(name)} have {list(tensor.shape)} "
                    f"numbers, and those of {base} {list(own.shape)}."
                )
            own.copy_(tensor)
    _load_recurrence(folder, model, base)


def _load_recurrence(folder: Path, model: Windowed, base: str) -> None:
    if model.recurrence is None or not (folder / RECURRENCE_WEIGHTS).is_file():
        return
    if recurrence_left_behind(folder, of_settings(model.config.recurrence)[1]):
        return
    tensors, own = _tensors(folder / RECURRENCE_WEIGHTS, folder), model.recurrence.state_dict()
    if {name: one.shape for name, one in tensors.items()} != {name: one.shape for name, one in own.items()}:
        kind = model.config.recurrence["kind"]
        raise UserError(
            f"adapter: {folder} has a recurrence {kind!r} for a body of other sizes than {base}; give the base that it "
            "was trained with."
        )
    model.recurrence.load_state_dict(tensors)


def _settings(folder: Path) -> Mapping[str, Any]:
    """peft's settings, once it is sure that the matrices mean what they mean here."""
    if not (folder / SETTINGS).is_file():
        raise UserError(
            f"adapter: {folder} holds none (no {SETTINGS}); give a folder that peft wrote, or `recur-tune export "
            "--adapter`."
        )
    try:
        settings = json.loads((folder / SETTINGS).read_text())
        kind = settings["peft_type"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"adapter: {folder / SETTINGS} cannot be read; get its files again.") from None
    if kind != "LORA":
        raise UserError(f"adapter: {folder} is of type {kind!r}, which is not supported; LORA is.")
    begun = str(settings.get("init_lora_weights", "")).lower()
    found = [word for name, word in _UNSUPPORTED.items() if settings.get(name)]
    if settings.get("bias", "none") != "none":
        found.append(f"trained biases (bias: {settings['bias']})")
    if begun.startswith(_CHANGES_BASE):
        found.append(f"a changed base (init_lora_weights: {begun})")
    if found:
        raise UserError(f"adapter: {folder} has {found[0]}, which is not supported; give an adapter of plain LoRA.")
    if not isinstance(settings.get("r"), int) or settings["r"] < 1:
        raise UserError(
            f"adapter: {folder / SETTINGS} says r: {settings.get('r')!r}, which is no rank; give 1 or more."
        )
    return settings


def _names(file: Path, folder: Path) -> Iterable[str]:
    names = list(_tensors(file, folder))
    wrong = [name for name in names if not name.startswith(_PREFIX) or not name.endswith(tuple(_MATRICES))]
    if wrong or not names:
        what = wrong[0] if wrong else "nothing"
        raise UserError(
            f"adapter: {file} has {what}, which is no matrix of LoRA; give one of plain LoRA on attention and MLPs."
        )
    return names


def _tensors(file: Path, folder: Path) -> dict[str, torch.Tensor]:
    if not file.is_file():
        raise UserError(
            f"adapter: {folder} has no {file.name}; save it with safetensors (a pickled file could run code)."
        )
    try:
        with safe_open(file, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise UserError(f"adapter: {file} is damaged ({' '.join(str(error).split())[:160]}).") from error


def _module(name: str) -> str:
    """The module that a matrix changes."""
    return name.removeprefix(_PREFIX).rsplit(".", 2)[0]
