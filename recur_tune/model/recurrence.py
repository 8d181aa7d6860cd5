"""The state that one window leaves for the next: how it is made and where it goes in.

A recurrence mixes a window's layer outputs (`mixture`), makes a state from them (`state`) and, in the next
window, gives the embeddings that a layer may attend to beside its own tokens (`embeddings`). The language
model treats the state as opaque, so another mechanism has these three methods to write and nothing else.

Shape suffixes: B lanes, T positions, K hidden size, S insertion sites (layers), M embeddings per site.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import nn


class Mixture:
    """The sum of a window's layer outputs, weighted by a softmax over layers.

    A mean over positions of the sum is the sum of the layers' means. Where nothing else is asked for, these are mixed.

    Attributes:
        of_means: Whether a layer's mean over its positions, [B, 1, K], is to be observed rather than its output.
    """

    def __init__(self, weight_L: torch.Tensor, of_means: bool) -> None:
        self.of_means = of_means
        self._weight_L = weight_L
        self._weights = iter(weight_L.unbind())
        self._means: list[torch.Tensor] = []
        self._sum_BTK: torch.Tensor | None = None

    def observe(self, output: torch.Tensor) -> None:
        """The next layer's."""
        if self.of_means:
            self._means.append(output)
        elif self._sum_BTK is None:
            self._sum_BTK = output * next(self._weights)
        else:
            self._sum_BTK = torch.addcmul(self._sum_BTK, output, next(self._weights))

    def total(self) -> torch.Tensor:
        """After the last layer: [B, T, K] or, of means, [B, 1, K]."""
        if self.of_means:
            return (self._weight_L[:, None, None, None] * torch.stack(self._means)).sum(0)
        assert self._sum_BTK is not None
        return self._sum_BTK


class Memory(nn.Module):
    """Pool the window, pass it through a small network, insert the result as extra keys and values.

    The fields of a MemorySpec, one by one: this code also runs beside a saved model, where nothing is installed that
    could check them.
    """

    def __init__(
        self,
        hidden_size: int,
        layers: int,
        l_ins: int | Literal["all"] = 2,
        width: int = 200,
        depth: int = 3,
        pooling: str = "mean",
        embeddings: int = 1,
        skip: bool = False,
    ) -> None:
        super().__init__()
        self.hidden_size, self.pooling, self.inserted, self.skip = hidden_size, pooling, embeddings, skip
        self.sites = list(range(layers)) if l_ins == "all" else [l_ins - 1]
        self.layer_logits = nn.Parameter(torch.zeros(layers))  # all layers weigh the same at first
        self.pooling_key = nn.Parameter(torch.zeros(hidden_size)) if pooling == "attention" else None
        # With 'recent' each embedding is made from a vector of its own, told apart by what is added to it.
        by_stretch = pooling == "recent"
        self.stretch_offsets = nn.Parameter(torch.zeros(embeddings, hidden_size)) if by_stretch else None
        made_at_once = 1 if by_stretch else embeddings
        sizes = [hidden_size, *[width] * depth, len(self.sites) * made_at_once * hidden_size]
        self.network = nn.Sequential()
        for number, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            if number:
                self.network.append(nn.ReLU())
            self.network.append(nn.Linear(fan_in, fan_out))
        self.apply(self.reset)

    def reset(self, module: nn.Module) -> None:
        """Initialise one of the modules in here; Hugging Face asks for each in turn."""
        if module is self:
            nn.init.zeros_(self.layer_logits)
            for parameter in (self.pooling_key, self.stretch_offsets):
                if parameter is not None:
                    nn.init.zeros_(parameter)
        elif isinstance(module, nn.Linear):
            # He's rule keeps the signal's size through the network, and no bias drowns it: with torch's default
            # the state would start as nearly the same vector for every text.
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
            if self.skip and module is self.network[-1]:
                module.weight.data *= 0.1  # most of the state is what the layers made, which attention can read

    def empty(self, lanes: int) -> torch.Tensor:
        """A state for lanes that have none, which must not be seen."""
        return self.layer_logits.new_zeros(lanes, len(self.sites), self.inserted, self.hidden_size)

    def mixture(self, position_by_position: bool) -> Mixture:
        """Of a window's layers; `position_by_position` where a mean over positions is not all that is asked of it."""
        return Mixture(self.layer_logits.softmax(0), of_means=self.pooling == "mean" and not position_by_position)

    def state(self, seen_BTK: torch.Tensor) -> torch.Tensor:
        """The state [B, S, M, K] from the mixture of a whole window's layers, or from its mean alone."""
        sites, hidden_size = len(self.sites), seen_BTK.shape[-1]
        if self.stretch_offsets is not None:
            means = [
                seen_BTK[:, begin:end].sum(1) / max(1, end - begin)
                for begin, end in stretches(seen_BTK.shape[1], self.inserted)
            ]
            pooled_BMK = torch.stack(means, dim=1) + self.stretch_offsets
            made_BSMK = self.network(pooled_BMK).unflatten(-1, (sites, hidden_size)).transpose(1, 2)
        else:
            pooled_BMK = self._pool(seen_BTK)[:, None]
            made_BSMK = self.network(pooled_BMK[:, 0]).unflatten(-1, (sites, self.inserted, hidden_size))
        return made_BSMK + pooled_BMK[:, None] if self.skip else made_BSMK

    def embeddings(self, layer: int, state_BSMK: torch.Tensor) -> torch.Tensor | None:
        """What `layer` may attend to beside its own tokens, [B, M, K]."""
        return state_BSMK[:, self.sites.index(layer)] if layer in self.sites else None

    def _pool(self, seen_BTK: torch.Tensor) -> torch.Tensor:
        if self.pooling == "max":
            return seen_BTK.amax(1)
        if self.pooling_key is None:
            return seen_BTK.mean(1)
        score_BT = seen_BTK @ self.pooling_key / seen_BTK.shape[-1] ** 0.5
        return torch.einsum("bt,btk->bk", score_BT.softmax(1), seen_BTK)


def stretches(positions: int, embeddings: int) -> list[tuple[int, int]]:
    """Where in a window each embedding looks: at stretches of 1, 2, 4, ... positions from its end, and the last at what
    is left. Where a short window has nothing left a stretch is empty."""
    found, end = [], positions
    for number in range(embeddings):
        begin = 0 if number == embeddings - 1 else max(0, end - 2**number)
        found.append((begin, end))
        end = begin
    return found
