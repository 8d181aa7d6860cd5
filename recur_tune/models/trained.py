"""What of a model learns: all of it, the recurrence alone, or LoRA's matrices and the recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import nn

from recur_tune.common.lora import LoraSpec
from recur_tune.models.windowed import Windowed
from recur_tune.ops.body import Module, Projection
from recur_tune.ops.lora import LoraLayer

Trainable = Literal["all", "recurrence", "lora"]


class Trained(NamedTuple):
    """What learns, and how the rest is held; a key of caches.

    Attributes:
        trainable: `all`, `recurrence` or `lora`.
        lora: LoRA's fields; None where there is none.
        bfloat16: Whether frozen matrices are held in bfloat16.
    """

    trainable: Trainable = "all"
    lora: LoraSpec | None = None
    bfloat16: bool = False

    def apply(self, model: Windowed) -> None:
        """Freeze the base, add LoRA's matrices, and hold what is frozen in the dtype that is said here."""
        if self.trainable == "all":
            return
        model.freeze_body()
        if self.lora is not None:
            add_lora(model, self.lora)
        if self.bfloat16:
            _shorten_frozen(model)


def lora_targets(model: Windowed, spec: LoraSpec) -> list[tuple[Projection, Module]]:
    """The modules that LoRA changes, with the projection that each is of."""
    found = []
    for block in model.body.blocks:
        of_attention = [block.qkv, block.out] if spec.has("attention") else []
        of_mlp = [block.up, block.down] if spec.has("mlp") else []
        found += [(projection, module) for projection in (*of_attention, *of_mlp) for module in projection.modules]
    return found


def add_lora(model: Windowed, spec: LoraSpec) -> None:
    """Give every target its two matrices, which learn; the model computes what it did before."""
    for projection, module in lora_targets(model, spec):
        outputs, inputs = module.weight.shape[::-1] if projection.inputs_first else module.weight.shape
        layer = LoraLayer(inputs, outputs, spec.rank, spec.scaling, spec.dropout)
        dtype = torch.promote_types(module.weight.dtype, torch.float32)  # its small updates would vanish in bfloat16
        module.lora = layer.to(module.weight.device, dtype).train(model.training)


def _shorten_frozen(model: Windowed) -> None:
    """Hold frozen matrices in bfloat16. Norms, biases and learned positions are few, and keep their dtype."""
    head, tokens = getattr(model, "lm_head", None), model.body.tokens
    tied = head is not None and head.weight is tokens.weight
    for module in _frozen_matrices(model):
        module.weight = nn.Parameter(module.weight.detach().to(torch.bfloat16), requires_grad=False)
    if tied and head is not None:
        head.weight = tokens.weight


def _frozen_matrices(model: Windowed) -> list[Module]:
    """The modules of frozen matrices: embeddings, projections, and the vocabulary's where it is one of its own."""
    head, tokens = getattr(model, "lm_head", None), model.body.tokens
    modules = [tokens, *(module for projection in model.body.projections for module in projection.modules)]
    if head is not None and head.weight is not tokens.weight:
        modules.append(head)
    return [module for module in modules if not module.weight.requires_grad]


def place(
    model: Windowed, device: torch.device, bfloat16: bool, told: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Move weights that lie in memory-mapped files to a device, one after the other: host memory never has a copy.

    Args:
        model: As `load_base` gives it, in the dtype of its files; then what learns was decided.
        device: Where it trains.
        bfloat16: Whether frozen matrices stay in bfloat16; all else is widened to single precision.
        told: Called after every weight with bytes moved so far, and those of all.
    """
    short = {id(module.weight) for module in _frozen_matrices(model)} if bfloat16 else set()
    weights = list(model.parameters())
    done, total = 0, sum(weight.nbytes for weight in weights)
    for weight in weights:
        done += weight.nbytes
        dtype = weight.dtype if id(weight) in short else torch.promote_types(weight.dtype, torch.float32)
        weight.data = weight.data.to(device, dtype)
        told(done, total)


def lay_frozen_together(model: Windowed) -> None:
    """Hold the frozen matrices of a projection in one storage, so that a step multiplies by all of them at once without
    a copy. Moving the model to another device takes them apart, so this comes after it."""
    for projection in model.body.projections:
        weights = projection.weights
        if len(weights) < 2 or any(weight.requires_grad for weight in weights):
            continue
        together, end = torch.cat([weight.detach() for weight in weights]), 0
        for module, weight in zip(projection.modules, weights, strict=True):
            begin, end = end, end + len(weight)
            module.weight = nn.Parameter(together[begin:end], requires_grad=False)


def merged(model: Windowed) -> Windowed:
    """The same model in single precision on the CPU, with LoRA's changes added to the weights that they change.

    Frozen weights may be held in bfloat16; there the small changes would be lost.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    inputs_first = {id(one): part.inputs_first for part in model.body.projections for one in part.lora}
    made: dict[int, torch.Tensor] = {}  # tied weights stay one
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        place, _, last = name.rpartition(".")
        if place in layers:
            continue
        if id(tensor) not in made:
            whole = tensor.detach()
            if whole.is_floating_point():
                whole = whole.to(torch.promote_types(whole.dtype, torch.float32), copy=True)
            layer = layers.get(f"{place}.lora") if last == "weight" else None
            if layer is not None:
                whole += layer.change(inputs_first[id(layer)]).detach()
            made[id(tensor)] = whole.cpu()
        tensors[name] = made[id(tensor)]
    with torch.device("meta"):
        plain = type(model)(model.config)
    plain.load_state_dict(tensors, strict=True, assign=True)
    plain.take_buffers(model)
    return plain.eval()
