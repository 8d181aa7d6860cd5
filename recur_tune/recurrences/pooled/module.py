"""Pooled: the paper's recurrence (section 3.1). A window's layers are mixed and pooled, a feed-forward network makes
embeddings of the result, and layers of the next window attend to them as extra keys and values.

Shape suffixes: B batch rows, T positions, K hidden size, S insertion sites (layers), M embeddings per site.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.ops.reference import stretch_means
from recur_tune.recurrences.seam import Recurrence, State, WindowPass, layers_at


class Pooled(Recurrence):
    """Pooling, a feed-forward network, and insertion as extra keys and values.

    Its fields are plain arguments: this code also runs beside a saved model, without pydantic.
    """

    def __init__(
        self,
        shape: Shape,
        l_ins: int | Literal["all"] = 2,
        width: int = 200,
        depth: int = 3,
        pooling: str = "mean",
        embeddings: int = 1,
        skip: bool = False,
    ) -> None:
        super().__init__(shape)
        hidden_size, layers = shape.hidden, shape.layers
        self.pooling, self.embeddings, self.skip = pooling, embeddings, skip
        self.sites = layers_at(l_ins, shape)
        self.layer_logits = nn.Parameter(torch.zeros(layers))  # equal weights at first
        self.pooling_key = nn.Parameter(torch.zeros(hidden_size)) if pooling == "attention" else None
        # With 'recent' each embedding has its own pooled vector, plus an offset that distinguishes it.
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
        """Initialise this module or one inside it; Hugging Face calls it for each."""
        if module is self:
            nn.init.zeros_(self.layer_logits)
            for parameter in (self.pooling_key, self.stretch_offsets):
                if parameter is not None:
                    nn.init.zeros_(parameter)
        elif isinstance(module, nn.Linear):
            # He initialisation and zero biases keep the signal's variance through the network: with torch's default
            # the state would start as nearly the same vector for every text.
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
            if self.skip and module is self.network[-1]:
                module.weight.data *= 0.1  # the state starts close to the layers' outputs, which attention can read

    def empty(self, batch_size: int) -> State:
        """Zeros."""
        return (self.layer_logits.new_zeros(batch_size, len(self.sites), self.embeddings, self.shape.hidden),)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> PooledWindowPass:
        """Attention masks the inserted rows where a document begins."""
        return PooledWindowPass(self, None if state is None else state[0], in_parts)

    def make(self, pooled_BMK: torch.Tensor) -> torch.Tensor:
        """The state [B, S, M, K] from a window's pooled vectors."""
        sites = len(self.sites)
        if self.stretch_offsets is not None:
            pooled_BMK = pooled_BMK + self.stretch_offsets
            made_BSMK = self.network(pooled_BMK).unflatten(-1, (sites, -1)).transpose(1, 2)
        else:
            made_BSMK = self.network(pooled_BMK[:, 0]).unflatten(-1, (sites, self.embeddings, -1))
        return made_BSMK + pooled_BMK[:, None] if self.skip else made_BSMK

    def pool(self, seen_BTK: torch.Tensor) -> torch.Tensor:
        """Pool a window's mixed layers to one vector, or one for each embedding, [B, M, K]."""
        if self.pooling == "max":
            return seen_BTK.amax(1, keepdim=True)
        if self.pooling_key is None:
            return stretch_means(seen_BTK, self.stretches)
        score_BT = seen_BTK @ self.pooling_key / seen_BTK.shape[-1] ** 0.5
        return torch.einsum("bt,btk->bk", score_BT.softmax(1), seen_BTK)[:, None]

    @property
    def stretches(self) -> int:
        """How many means are taken, where pooling is by means."""
        return 1 if self.stretch_offsets is None else self.embeddings


class PooledWindowPass(WindowPass):
    """Mixes a window's layers, by softmax weights over layers.

    The mixture's mean over positions is the mixture of the layers' means. So where pooling is by means, and the window
    is read at once, only means are mixed.
    """

    def __init__(self, pooled: Pooled, state_BSMK: torch.Tensor | None, in_parts: bool) -> None:
        self._pooled = pooled
        # By site, [B, M, K]: each is contiguous, and one operation stacks their gradients.
        self._inserted = () if state_BSMK is None else state_BSMK.transpose(0, 1).contiguous().unbind()
        self.wants = "means" if pooled.pooling in ("mean", "recent") and not in_parts else "outputs"
        self.stretches = pooled.stretches
        self._weights = pooled.layer_logits.softmax(0)
        self._means: list[torch.Tensor] = []
        self._sum_BTK: torch.Tensor | None = None
        self._parts: list[torch.Tensor] = []

    def inserted(self, layer: int) -> torch.Tensor | None:
        """The state's embeddings for this layer."""
        sites = self._pooled.sites
        return self._inserted[sites.index(layer)] if self._inserted and layer in sites else None

    def observe(self, layer: int, output: torch.Tensor) -> None:
        """Add it to the mixture."""
        if self.wants == "means":
            self._means.append(output)
            return
        weight = self._weights[layer]
        before_BTK = self._sum_BTK
        self._sum_BTK = output * weight if before_BTK is None else torch.addcmul(before_BTK, output, weight)
        if layer == len(self._weights) - 1:
            self._parts.append(self._sum_BTK)
            self._sum_BTK = None

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The state from all parts of the window together, or from the means."""
        if self.wants == "means":
            pooled_BMK = (self._weights[:, None, None, None] * torch.stack(self._means)).sum(0)
        else:
            self._parts = [torch.cat(self._parts, dim=1)]
            pooled_BMK = self._pooled.pool(self._parts[0])
        return (self._pooled.make(pooled_BMK),)

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders what was observed; inserted rows are already in the key-value cache."""
        self._parts = [part[index_B] for part in self._parts]
