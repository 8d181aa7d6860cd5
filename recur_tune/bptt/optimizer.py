"""AdamW of one worker, or of several that sum their gradients first; its moments may be sharded over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from recur_tune.bptt.collectives import (
    all_gather,
    all_reduce,
    broadcast,
    is_grouped,
    reduce_scatter,
    worker_count,
    worker_rank,
)
from recur_tune.bptt.step_gradients import StepGradients
from recur_tune.models import Windowed
from recur_tune.ops.flat_layout import FlatLayout, flat_layout, trained_parameters

# A parameter's moments, and how many steps they have seen.
AdamState = Mapping[str, torch.Tensor]
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEPS = "step"


def make_optimizer(
    model: Windowed,
    learning_rate: float,
    weight_decay: float,
    recurrence_rate: float = 1.0,
    lora_rate: float = 1.0,
    shard: bool = False,
) -> AdamW:
    """AdamW, fused: one kernel for all parameters and no temporary copies of them.

    Every parameter group has a factor of the learning rate, `rate`: the recurrence's is `recurrence_rate`, that of
    LoRA's matrices `lora_rate`. With `shard` every worker keeps the moments of its own part.
    """
    of_lora = {parameter for layer in model.body.lora for parameter in layer.parameters()}
    rates = {"base": 1.0, "recurrence": recurrence_rate, "lora": lora_rate}
    parts: dict[str, list[nn.Parameter]] = {part: [] for part in rates}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part = "lora" if parameter in of_lora else "recurrence" if name.startswith("recurrence.") else "base"
            parts[part].append(parameter)
    groups = [{"params": parts[part], "rate": rate} for part, rate in rates.items()]
    if shard:
        layout = flat_layout(trained_parameters(model), model.body, worker_count())
        optimizer: AdamW = ShardedAdamW(groups, learning_rate, weight_decay, layout, worker_rank(), worker_count())
    else:
        optimizer = AdamW(groups, lr=learning_rate, weight_decay=weight_decay, fused=True)
    set_learning_rate(optimizer, learning_rate)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set every group's learning rate, by its factor `rate`."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["rate"]


class AdamW(torch.optim.AdamW):
    """AdamW with all moments on every worker."""

    shards = 1

    def receive(
        self, found: StepGradients, trained: Sequence[nn.Parameter], divisor: float, max_norm: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum loss and gradients over workers, divide them, and clip the gradients' norm; gives loss and norm."""
        if is_grouped():
            all_reduce(found.buffer)
        found.buffer.div_(divisor)
        for parameter, gradient in zip(trained, found.gradients, strict=True):
            parameter.grad = gradient
        return found.loss.clone(), nn.utils.clip_grad_norm_(self._parameters, max_norm)

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def update(self, found: StepGradients, trained: Sequence[nn.Parameter]) -> None:
        """Change the parameters by the gradients that were received."""
        self.step()
        self.zero_grad(set_to_none=True)

    def gathered_state(self) -> dict[nn.Parameter, AdamState]:
        """Moments and steps of every parameter, for the first worker; all workers have to ask for them together."""
        return {parameter: self.state[parameter] for parameter in self._parameters}

    def load_gathered_state(self, state: Mapping[nn.Parameter, AdamState]) -> None:
        """Continue from these moments and steps, whatever the number of workers that made them."""
        for parameter, moments in state.items():  # the fused kernel counts steps on its device
            self.state[parameter].update({name: moment.to(parameter.device) for name, moment in moments.items()})


class _Piece(NamedTuple):
    """A part of a parameter that this worker updates.

    Attributes:
        of: The whole parameter.
        elements: Those of the parameter.
        at: Where they lie in the flat buffer.
        values: A view of them.
    """

    of: nn.Parameter
    elements: slice
    at: slice
    values: torch.Tensor


class ShardedAdamW(AdamW):
    """AdamW whose moments are sharded over the workers (ZeRO stage 1).

    Each worker gets the summed gradients of its part of the flat buffer (reduce-scatter), updates these elements and
    gives them to the others (all-gather), in the same buffer. So a parameter takes 8 + 8 / workers bytes instead of 16.
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        learning_rate: float,
        weight_decay: float,
        layout: FlatLayout,
        rank: int,
        shards: int,
    ) -> None:
        self.layout, self.rank, self.shards = layout, rank, shards
        self.part = layout.part(rank, shards)
        pieces = [list(self._cut(group["params"])) for group in groups]
        own = [{**group, "params": [one.values for one in cut]} for group, cut in zip(groups, pieces, strict=True)]
        super().__init__(own, lr=learning_rate, weight_decay=weight_decay, fused=True)
        self.pieces = [one for cut in pieces for one in cut]

    def _cut(self, parameters: Sequence[nn.Parameter]) -> Iterator[_Piece]:
        for parameter in parameters:
            span = self.layout.spans[parameter]
            at = slice(max(span.start, self.part.start), min(span.stop, self.part.stop))
            if at.start < at.stop:
                elements = slice(at.start - span.start, at.stop - span.start)
                yield _Piece(parameter, elements, at, parameter.detach().view(-1)[elements].requires_grad_())

    def receive(
        self, found: StepGradients, trained: Sequence[nn.Parameter], divisor: float, max_norm: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for this worker's part, by a reduce-scatter; the norm is that of all parts."""
        own = found.buffer[self.part]
        reduce_scatter(own, found.buffer)
        own.div_(divisor)
        loss = own.new_zeros(())
        if self.rank == self.shards - 1:  # the buffer's last element is the loss
            loss = own[-1].clone()
            own[-1] = 0
        sums = torch.stack([loss, torch.linalg.vector_norm(own).square()])
        all_reduce(sums)
        loss, norm = sums[0], sums[1].sqrt()
        own.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))  # as torch's clip_grad_norm_
        for piece in self.pieces:
            piece.values.grad = found.buffer[piece.at]
        return loss, norm

    @torch.no_grad()
    def update(self, found: StepGradients, trained: Sequence[nn.Parameter]) -> None:
        """Change this worker's part of the parameters, and all-gather the others' parts in the gradients' buffer."""
        self.step()
        for piece in self.pieces:
            found.buffer[piece.at] = piece.values
        self.zero_grad(set_to_none=True)
        all_gather(found.buffer, found.buffer[self.part])
        torch._foreach_copy_(list(trained), found.gradients)

    def gathered_state(self) -> dict[nn.Parameter, AdamState]:
        """On the CPU, since all of it may not fit beside a model."""
        parts = {name: self._gather(name) for name in _MOMENTS}
        if self.rank:
            return {}
        wholes = {name: torch.cat(found) for name, found in parts.items()}
        steps = self.state[self.pieces[0].values][_STEPS]  # the first worker has a piece of the first parameter
        return {
            parameter: {
                **{name: whole[span].view(parameter.shape) for name, whole in wholes.items()},
                _STEPS: steps.to("cpu", copy=True),  # a file takes no two names for one tensor
            }
            for parameter, span in self.layout.spans.items()
        }

    def _gather(self, name: str) -> list[torch.Tensor]:
        """The parts of a flat moment, for the first worker, one after the other: none holds all of it on its device."""
        parts = []
        for rank in range(self.shards):
            part = self.layout.new_part(self.shards)
            if rank == self.rank:
                for piece in self.pieces:
                    begin = piece.at.start - self.part.start
                    part[begin : begin + piece.values.numel()] = self.state[piece.values][name]
            broadcast([part], source=rank)
            if self.rank == 0:
                parts.append(part.cpu())
        return parts

    def load_gathered_state(self, state: Mapping[nn.Parameter, AdamState]) -> None:
        """Take this worker's part of them."""
        for piece in self.pieces:
            moments = state[piece.of]
            own = {name: moments[name].reshape(-1)[piece.elements] for name in _MOMENTS} | {_STEPS: moments[_STEPS]}
            device = piece.values.device
            self.state[piece.values].update({name: moment.to(device, copy=True) for name, moment in own.items()})
