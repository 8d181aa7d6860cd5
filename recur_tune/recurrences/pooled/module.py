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
from recur_tune.recurrences.seam import Recurrence, State, WindowPass, layers_at, single

Folded = tuple[torch.Tensor, ...]  # positions pooled so far, [B, 1, K], and with attention their weight [B, 1]


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

    def fold(self, before: Folded | None, seen_BTK: torch.Tensor) -> Folded:
        """Further positions in what is pooled to one vector: a maximum, a sum, or a mean and its logarithmic weight."""
        if self.pooling == "max":
            most_B1K = seen_BTK.amax(1, keepdim=True)
            return (most_B1K if before is None else torch.maximum(before[0], most_B1K),)
        if self.pooling_key is None:
            sum_B1K = seen_BTK.sum(1, keepdim=True)
            return (sum_B1K if before is None else before[0] + sum_B1K,)
        score_BT = single(seen_BTK @ self.pooling_key / seen_BTK.shape[-1] ** 0.5)
        log_B1 = score_BT.logsumexp(1, keepdim=True)
        mean_B1K = ((score_BT - log_B1).exp()[..., None] * seen_BTK).sum(1, keepdim=True)
        if before is None:
            return mean_B1K, log_B1
        mean_before_B1K, log_before_B1 = before
        both_B1 = torch.logaddexp(log_before_B1, log_B1)
        share_B11, share_before_B11 = ((one - both_B1).exp()[..., None] for one in (log_B1, log_before_B1))
        return share_B11 * mean_B1K + share_before_B11 * mean_before_B1K, both_B1


class PooledWindowPass(WindowPass):
    """Mixes a window's layers, by softmax weights over layers.

    The mixture's mean over positions is the mixture of the layers' means. So where pooling is by means, and the window
    is read at once, only means are mixed. Where it is read in parts, positions are pooled as they come. Only the last
    ones stay, where they have stretches of their own.
    """

    def __init__(self, pooled: Pooled, state_BSMK: torch.Tensor | None, in_parts: bool) -> None:
        self._pooled, self._in_parts = pooled, in_parts
        # By site, [B, M, K]: each is contiguous, and one operation stacks their gradients.
        self._inserted = () if state_BSMK is None else state_BSMK.transpose(0, 1).contiguous().unbind()
        self.wants = "means" if pooled.pooling in ("mean", "recent") and not in_parts else "outputs"
        self.stretches = pooled.stretches
        self._weights: torch.Tensor | None = pooled.layer_logits.softmax(0)
        self._means: list[torch.Tensor] = []
        self._sum_BTK: torch.Tensor | None = None
        self._parts: list[torch.Tensor] = []
        self._folded: Folded | None = None
        self._count = 0  # positions in it

    def inserted(self, layer: int) -> torch.Tensor | None:
        """The state's embeddings for this layer."""
        sites = self._pooled.sites
        return self._inserted[sites.index(layer)] if self._inserted and layer in sites else None

    def observe(self, layer: int, output: torch.Tensor) -> None:
        """Add it to the mixture."""
        if self.wants == "means":
            self._means.append(output)
            return
        if self._weights is None:
            self._weights = self._pooled.layer_logits.softmax(0)
        weight = self._weights[layer]
        before_BTK = self._sum_BTK
        self._sum_BTK = output * weight if before_BTK is None else torch.addcmul(before_BTK, output, weight)
        if layer == len(self._weights) - 1:
            self._parts.append(self._sum_BTK)
            self._sum_BTK = None

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The state from all parts of the window together, or from the means."""
        if self.wants == "means":
            assert self._weights is not None
            pooled_BMK = (self._weights[:, None, None, None] * torch.stack(self._means)).sum(0)
        elif self._in_parts:
            pooled_BMK = self._pooled_so_far()
        else:
            [seen_BTK] = self._parts
            pooled_BMK = self._pooled.pool(seen_BTK)
        return (self._pooled.make(pooled_BMK),)

    def rest(self) -> None:
        """Pools what was read. Inserted rows are in the key-value cache by now."""
        self._fold()
        self._inserted, self._weights = (), None

    def _fold(self) -> None:
        """Pool all positions but the last, of which stretches are short."""
        seen_BTK = torch.cat(self._parts, dim=1)
        split = max(0, seen_BTK.shape[1] - (2 ** (self.stretches - 1) - 1))
        if split:
            self._folded = self._pooled.fold(self._folded, seen_BTK[:, :split])
            self._count += split
        self._parts = [seen_BTK[:, split:].clone()]

    def _pooled_so_far(self) -> torch.Tensor:
        self._fold()
        if self._folded is None:
            return stretch_means(self._parts[0], self.stretches)
        pooled_B1K = self._folded[0]
        if self._pooled.pooling in ("mean", "recent"):
            pooled_B1K = pooled_B1K / self._count
        if self.stretches == 1:
            return pooled_B1K
        return torch.cat([stretch_means(self._parts[0], self.stretches)[:, :-1], pooled_B1K], dim=1)

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders what was observed; inserted rows are already in the key-value cache."""
        self._folded = None if self._folded is None else tuple(one[index_B] for one in self._folded)
        self._parts = [part[index_B] for part in self._parts]
