"""What of a model learns: all of it, the recurrence alone, or LoRA's matrices and the recurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import nn

from recur_tune.common.lora import LoraSpec
from recur_tune.models.windowed import Windowed
from recur_tune.ops.body import Module, Projection
from recur_tune.ops.joint_weight import lay_together
from recur_tune.ops.lora import LoraLayer
from recur_tune.ops.quantised import QuantisedWeight, dequantised

Trainable = Literal["all", "recurrence", "lora"]
BaseBits = Literal[16, 8, 4]


class Trained(NamedTuple):
    """What learns, and how the rest is held; a key of caches.

    Attributes:
        trainable: `all`, `recurrence` or `lora`.
        lora: LoRA's fields; None where there is none.
        bfloat16: Whether frozen matrices are held in bfloat16.
        bits: Of a weight of the blocks, where they are frozen; 16 holds them in the dtype above.
    """

    trainable: Trainable = "all"
    lora: LoraSpec | None = None
    bfloat16: bool = False
    bits: BaseBits = 16

    def apply(
        self,
        model: Windowed,
        device: torch.device | None = None,
        told: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Freeze the base, add LoRA's matrices, and hold every weight as it is said here.

        Weights are taken one after the other: those in memory-mapped files have no copy in host memory, and a device
        has one weight at a time before it is quantised.

        Args:
            model: With its weights in any dtype; those that are not held in fewer bits are widened to single precision.
            device: Where it trains; None leaves it where it is.
            told: Called after every weight with bytes done so far, and those of all.
        """
        if self.trainable != "all":
            model.freeze_body()
        if self.lora is not None:
            add_lora(model, self.lora)
        matrices = {(module, "weight") for module in _frozen_matrices(model)}
        of_blocks = {(module, "weight") for projection in model.body.projections for module in projection.modules}
        in_bits = of_blocks & matrices if self.bits != 16 else set()
        places = _places(model)
        done, total = 0, sum(getattr(*holders[0]).nbytes for holders in places)
        for holders in places:
            weight = getattr(*holders[0])
            done += weight.nbytes
            is_short = self.bfloat16 and not matrices.isdisjoint(holders)
            held = _held(weight, device, is_short, 16 if in_bits.isdisjoint(holders) else self.bits)
            for module, name in holders:
                if not isinstance(held, nn.Parameter):
                    delattr(module, name)  # a parameter's place takes no module
                setattr(module, name, held)
            told(done, total)


def _places(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Where every weight stands, as module and name; a tied one stands in several places."""
    found: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            found.setdefault(weight, []).append((module, name))
    return list(found.values())


def _held(
    weight: nn.Parameter, device: torch.device | None, bfloat16: bool, bits: BaseBits
) -> nn.Parameter | QuantisedWeight:
    if bits != 16:
        return QuantisedWeight(weight.detach().to(device), bits, bfloat16)
    dtype = torch.bfloat16 if bfloat16 else torch.promote_types(weight.dtype, torch.float32)
    moved = weight.detach().to(device, dtype)
    is_same = moved.dtype == weight.dtype and moved.device == weight.device
    return weight if is_same else nn.Parameter(moved, requires_grad=weight.requires_grad)


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


def _frozen_matrices(model: Windowed) -> list[Module]:
    """The modules of frozen matrices: embeddings, projections, and the vocabulary's. Norms, biases and learned
    positions are few, and keep their dtype."""
    of_vocabulary = [model.body.tokens, getattr(model, "lm_head", None)]  # a series has none
    modules = [module for module in of_vocabulary if module is not None]
    modules += [module for projection in model.body.projections for module in projection.modules]
    return [module for module in modules if not module.weight.requires_grad]


def lay_frozen_together(model: Windowed) -> None:
    """Hold the frozen matrices of a projection, and LoRA's beside them, so that a step multiplies by all of them at
    once without a copy. Moving the model to another device takes them apart, so this comes after it."""
    for projection in model.body.projections:
        lay_together(projection)


def merged(model: Windowed) -> Windowed:
    """The same model in single precision on the CPU, with LoRA's changes added to the weights that they change.

    Frozen weights may be held in bfloat16; there the small changes would be lost. Those in fewer bits are dequantised:
    their values, not those of the base's files, are what the changes were learned beside.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    inputs_first = {id(one): part.inputs_first for part in model.body.projections for one in part.lora}
    made: dict[torch.Tensor | QuantisedWeight, torch.Tensor] = {}  # tied weights stay one
    tensors = {}
    for name, held in _held_weights(model):
        place, _, last = name.rpartition(".")
        if held not in made:
            whole = dequantised([held]) if isinstance(held, QuantisedWeight) else held.detach()
            if whole.is_floating_point():
                whole = whole.to(torch.promote_types(whole.dtype, torch.float32), copy=True)
            layer = layers.get(f"{place}.lora") if last == "weight" else None
            if layer is not None:
                whole += layer.change(inputs_first[id(layer)]).detach()
            made[held] = whole.cpu()
        tensors[name] = made[held]
    with torch.device("meta"):
        plain = type(model)(model.config)
    plain.load_state_dict(tensors, strict=True, assign=True)
    plain.take_buffers(model)
    return plain.eval()


def _held_weights(model: Windowed) -> Iterator[tuple[str, torch.Tensor | QuantisedWeight]]:
    """A model's state without LoRA's; of a quantised weight not its parts."""
    modules = dict(model.named_modules())
    for name, tensor in model.state_dict(keep_vars=True).items():
        place, _, last = name.rpartition(".")
        holder = modules[place]
        if isinstance(holder, QuantisedWeight):
            if last == "codes":
                yield place, holder
        elif not isinstance(holder, LoraLayer):
            yield name, tensor
