"""FastWeights: linear attention over windows, with an associative memory per key-value head and layer. At a window's
end its keys and values are written into the memory; the next window's queries read it, and a gate per query head mixes
the answers into attention's output.

'linear' and 'delta' (the delta rule) are Infini-attention's equations 7 to 10, with f = ELU + 1:

    read    f(Q) M / f(Q) z
    write   M + f(K)' V   (delta: V - f(K) M / f(K) z in V's place),   z + the sum of f(K)

'gated' is the gated delta rule for a whole window of n positions at once, with queries and keys of length 1:

    read    Q M
    write   a M + r/n K' (V - K a M)

It is one step of gradient descent on the window's mean squared error; the rule for single positions takes n steps. Keys
of length 1 keep the eigenvalues of K'K/n between 0 and 1, so no rate r from 0 to 2 makes M grow.

Shape suffixes: B batch rows, T positions, S sites (layers with a memory), H query heads, G key-value heads, D head
size, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.recurrences.seam import (
    CLOSED_GATE,
    GATE_SPEED,
    Heads,
    Recurrence,
    State,
    WindowPass,
    as_given,
    gate,
    layers_at,
    load_kernels,
    single,
)  # fmt: skip

_KERNELS = "recur_tune.recurrences.fast_weights.kernels"
_KEEPS = 2.2 / GATE_SPEED  # at first the decay a is 0.9
_LEAST = 1e-6  # lower bound of the divisor, which is 0 for an empty memory


class FastWeights(Recurrence):
    """A matrix per key-value head.

    Its fields are plain arguments: this code also runs beside a saved model, without pydantic.
    """

    def __init__(self, shape: Shape, write_rule: str = "delta", fast_layers: int | Literal["all"] = "all") -> None:
        super().__init__(shape)
        self.write_rule = write_rule
        self.sites = layers_at(fast_layers, shape)
        groups = (len(self.sites), shape.key_value_heads)
        is_gated = write_rule == "gated"
        self.gate_logits = nn.Parameter(torch.empty(len(self.sites), shape.heads))
        self.decay_logits = nn.Parameter(torch.empty(groups)) if is_gated else None
        self.rate_logits = nn.Parameter(torch.empty(groups)) if is_gated else None
        self.reset(self)

    def reset(self, module: nn.Module) -> None:
        """Gates start closed, the decay a at 0.9 and the rate r at 1."""
        if module is self:
            starts = ((self.gate_logits, CLOSED_GATE), (self.decay_logits, _KEEPS), (self.rate_logits, 0.0))
            for parameter, start in starts:
                if parameter is not None:
                    nn.init.constant_(parameter, start)

    def reset_from_scratch(self) -> None:
        """Half open gates; the paper does not say how its own start."""
        nn.init.zeros_(self.gate_logits)

    def empty(self, batch_size: int) -> State:
        """Zeros: memories, and sums of keys where the rule has them."""
        size, dtype = self.shape.head_size, torch.promote_types(self.gate_logits.dtype, torch.float32)
        heads = (batch_size, len(self.sites), self.shape.key_value_heads)
        memory_BSGDD = self.gate_logits.new_zeros(*heads, size, size, dtype=dtype)
        if self.write_rule == "gated":
            return (memory_BSGDD,)
        return memory_BSGDD, memory_BSGDD.new_zeros(*heads, size)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> FastWeightsWindowPass:
        """A window reads the memory as it was at its start."""
        return FastWeightsWindowPass(self, state, fresh_B)

    def feature(self, x: torch.Tensor) -> torch.Tensor:
        """The feature map of queries and keys."""
        return F.normalize(single(x), dim=-1) if self.write_rule == "gated" else F.elu(single(x)) + 1

    def read(self, feature: torch.Tensor, memory: Sequence[torch.Tensor]) -> torch.Tensor:
        """The answers of a memory [B, G, D, D] to features [B, G, any, D]."""
        if self.write_rule == "gated":
            return feature @ memory[0]
        return feature @ memory[0] / (feature @ memory[1][..., None]).clamp_min(_LEAST)

    def write(self, memory: State | None, keys: list[torch.Tensor], values: list[torch.Tensor], fused: bool) -> State:
        """All sites' memories after a window with these keys and values, each [B, G, T, D]; None: there were none."""
        if self.decay_logits is not None and memory is not None:
            memory = (_of_heads(self.decay_logits) * memory[0],)
        corrects = self.write_rule != "linear" and memory is not None
        if fused and memory is not None:
            given = keys, values, *_and_sums(memory), corrects, _LEAST
            written: tuple[Any, ...] = load_kernels(_KERNELS).write_memory(*given)
        else:
            sites = [None] * len(keys) if memory is None else _sites(memory)
            made = [self._added(*one, corrects) for one in zip(sites, keys, values, strict=True)]
            written = tuple(torch.stack(part, dim=1) for part in zip(*made, strict=True))
        if self.rate_logits is None:
            return written if memory is None else tuple(map(torch.add, memory, written))
        rate_SG11 = 2 * _of_heads(self.rate_logits) / max(1, keys[0].shape[2])
        return (rate_SG11 * written[0] if memory is None else torch.addcmul(memory[0], rate_SG11, written[0]),)

    def _added(self, memory: State | None, k_BGTD: torch.Tensor, v_BGTD: torch.Tensor, corrects: bool) -> State:
        """What a site's keys and values add to its memory, and to its sum of features."""
        feature_BGTD, v_BGTD = self.feature(k_BGTD), single(v_BGTD)
        if corrects and memory is not None:
            v_BGTD = v_BGTD - self.read(feature_BGTD, memory)
        added = feature_BGTD.mT @ v_BGTD
        return (added,) if self.write_rule == "gated" else (added, feature_BGTD.sum(2))


class FastWeightsWindowPass(WindowPass):
    """Reads the memory that the window began with, and collects the window's keys and values."""

    whole_heads = True

    def __init__(self, fast: FastWeights, state: State | None, fresh_B: torch.Tensor | None) -> None:
        self._fast, self._memory = fast, state
        self._keys_values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._sites: list[State] = []  # of each, the gates, and the memory as the window found it
        if state is not None:
            # The gate of an empty memory is closed, so that heads are as without one.
            seen_B = state[-1].flatten(1).any(1)
            if fresh_B is not None:
                seen_B = seen_B & ~fresh_B
            self._memory = tuple(torch.where(_over(seen_B, one), one, 0.0) for one in state)
            self._sites = self._seen(seen_B, self._memory)

    @property
    def _fused(self) -> bool:
        if not self.fused:
            return False
        return self._fast.shape.head_size <= load_kernels(_KERNELS).WIDEST

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Collect keys and values, and mix the memory's answers to the queries into the heads' output."""
        if layer not in self._fast.sites:
            return out_BTC
        site = self._fast.sites.index(layer)
        q_BHTD, k_BGTD, v_BGTD = heads()
        self._keys_values[site] = k_BGTD, v_BGTD
        if self._memory is None:
            return out_BTC
        if not self._sites:
            self._sites = self._seen(self._memory[-1].flatten(1).any(1), self._memory)
        gate_BH, *memory = self._sites[site]
        if self._fused:
            return load_kernels(_KERNELS).read_memory(q_BHTD, out_BTC, gate_BH, *_and_sums(memory), _LEAST)
        with as_given(out_BTC):
            # Query heads of a group read one memory, so they stand one behind the other.
            group, positions = q_BHTD.shape[1] // k_BGTD.shape[1], q_BHTD.shape[2]
            feature_BGXD = self._fast.feature(q_BHTD).unflatten(1, (-1, group)).flatten(2, 3)
            read_BGXD = self._fast.read(feature_BGXD, memory)
            read_BTHD = read_BGXD.unflatten(2, (group, positions)).flatten(1, 2).transpose(1, 2)
            out_BTHD = single(out_BTC).unflatten(-1, read_BTHD.shape[2:])
            mixed_BTHD = torch.lerp(out_BTHD, read_BTHD, gate_BH[:, None, :, None])
            return mixed_BTHD.flatten(2).to(out_BTC.dtype)

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """Write this window into the memory, without the positions that the next one reads again."""
        stride = max(0, self._keys_values[0][0].shape[2] - overlap)
        in_order = [self._keys_values[site] for site in range(len(self._keys_values))]
        keys, values = ([one[:, :, :stride] for one in part] for part in zip(*in_order, strict=True))
        with as_given(keys[0]):
            return self._fast.write(self._memory, keys, values, self._fused)

    def _seen(self, seen_B: torch.Tensor, memory: State) -> list[State]:
        """By sites, the gates, open where a memory is not empty, and the memory."""
        gate_SH = gate(self._fast.gate_logits)
        return _sites((torch.where(_over(seen_B, gate_SH[None]), gate_SH, 0.0), *memory))

    def rest(self) -> None:
        """Lets go of the gates."""
        self._sites = []

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders the memory and what is to be written."""
        self.rest()
        self._keys_values = {site: (k[index_B], v[index_B]) for site, (k, v) in self._keys_values.items()}
        self._memory = None if self._memory is None else tuple(one[index_B] for one in self._memory)


def _sites(state: State) -> list[State]:
    """The state by sites, as views whose gradients are stacked in one operation."""
    return list(zip(*(one.unbind(1) for one in state), strict=True))


def _and_sums(memory: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A memory, and the sums of keys where the rule has them."""
    return memory[0], memory[1] if len(memory) > 1 else None


def _over(one_B: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A value per batch row, shaped to be broadcast over `x`."""
    return one_B.view(-1, *[1] * (x.dim() - 1))


def _of_heads(logit_SG: torch.Tensor) -> torch.Tensor:
    """Gates, shaped to be broadcast over heads' matrices."""
    return gate(logit_SG)[..., None, None]
