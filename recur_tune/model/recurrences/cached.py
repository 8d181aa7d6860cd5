"""Cached: the last rows of layers' keys and values, for the next window to attend to (Transformer-XL, Memorizing
Transformers). No gradient goes back to the windows that they come from.

Which positions rows have. In one softmax with a window's own keys they stand before it, one behind the other. With
rotary positions that is exact: it is what they would be to one another in a longer window. Learned positions are part
of a row already, and wrong: that of its place in its own window. A learned offset, zero at first, tells such rows from
the window's. Apart from the window, behind a gate, rows have no rotary positions, nor have the queries: a row is found
by what it says, however far back it stands, so there may be more of them than a body has positions.

Shape suffixes: B lanes, T positions, S sites (layers that keep rows), M rows, H heads of queries, G of keys and values,
D head size, R queries of a group, C columns.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.model.recurrence import Heads, Passage, Recurrence, State, layers_at, single
from recur_tune.shape import Shape

_CLOSED = -4.0  # a gate's logit at first: it lets 1.8 % through, and learns


class Cached(Recurrence):
    """Keep the last rows of keys and values, and attend to them in the next window.

    The state is these rows, keys and values side by side, as they were before rotary positions, and how many of them a
    lane has filled. The newest come last.
    """

    stops_gradients = True

    def __init__(
        self,
        shape: Shape,
        cache_rows: int = 128,
        cache_layer: int | Literal["all"] = "all",
        cache_join: str = "gate",
    ) -> None:
        super().__init__(shape)
        self.rows, self.gated = cache_rows, cache_join == "gate"
        self.sites = layers_at(cache_layer, shape)
        sites, self.columns = len(self.sites), 2 * shape.key_value_heads * shape.head_size
        # Apart from the window, the same offset on all keys would change nothing: there every channel has a scale.
        self.offsets = None if self.gated else nn.Parameter(torch.zeros(sites, self.columns))
        self.scales = nn.Parameter(torch.ones(sites, self.columns)) if self.gated else None
        self.gates = nn.Parameter(torch.full((sites, shape.heads), _CLOSED)) if self.gated else None

    def reset(self, module: nn.Module) -> None:
        """Initialise one of the modules in here; Hugging Face asks for each in turn."""
        for parameter, value in ((self.offsets, 0.0), (self.scales, 1.0), (self.gates, _CLOSED)):
            if parameter is not None:
                nn.init.constant_(parameter, value)

    def empty(self, lanes: int) -> State:
        """Rows of zeros, of which none is filled."""
        like = next(self.parameters())
        rows_BSMC = like.new_zeros(lanes, len(self.sites), self.rows, self.columns)
        return rows_BSMC, like.new_zeros(lanes, dtype=torch.float32)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> CachedPassage:
        """Lanes that begin a document have no row filled."""
        if state is None:
            return CachedPassage(self, None, None)
        rows_BSMC, filled_B = (one.detach() for one in state)
        if fresh_B is not None:
            filled_B = filled_B.masked_fill(fresh_B, 0)
        return CachedPassage(self, rows_BSMC, filled_B)


class CachedPassage(Passage):
    """A window among rows of those before; it gathers rows of its own."""

    def __init__(self, cached: Cached, rows_BSMC: torch.Tensor | None, filled_B: torch.Tensor | None) -> None:
        self._cached, self._rows_BSMC, self._filled_B = cached, rows_BSMC, filled_B
        self.seen_B = None if filled_B is None else filled_B.long()
        self._visible_BM = None if self.seen_B is None or not cached.gated else _visible(self.seen_B, cached.rows)
        self._gates: tuple[torch.Tensor, ...] = ()  # of every site, [B, H]
        if self.seen_B is not None and cached.gates is not None:
            gate_SH = single(cached.gates).sigmoid()
            self._gates = torch.where((self.seen_B > 0)[:, None, None], gate_SH, 0.0).unbind(1)
        # Parts of keys and values, each [B, G, T, D]; they are views, and copied when it is known which rows are kept.
        self._new: dict[int, list[tuple[torch.Tensor, ...]]] = {layer: [] for layer in cached.sites}

    def keys_values(self, layer: int) -> torch.Tensor | None:
        """The rows of this layer, for one softmax with the window's own."""
        cached = self._cached
        if self._rows_BSMC is None or cached.offsets is None or layer not in self._new:
            return None
        site = cached.sites.index(layer)
        return self._rows_BSMC[:, site] + cached.offsets[site]

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Keep the window's keys and values and, where there is a gate, mix in what the rows give."""
        if layer not in self._new:
            return out_BTC
        q_BHTD, *keys_values = heads()
        self._new[layer].append(tuple(one.detach() for one in keys_values))
        own, rows_BSMC, visible_BM = self._cached, self._rows_BSMC, self._visible_BM
        if rows_BSMC is None or visible_BM is None or own.scales is None:
            return out_BTC
        site = own.sites.index(layer)
        rows_BMC, scale_C, gate_BH = rows_BSMC[:, site], own.scales[site], self._gates[site]
        if self.kernels is not None:
            return self.kernels.attend_cached(q_BHTD, out_BTC, rows_BMC, scale_C, gate_BH, self.seen_B)
        taken_BTHD = single(_taken((rows_BMC * scale_C).to(q_BHTD.dtype), visible_BM, q_BHTD, own.shape))
        mixed_BTHD = torch.lerp(single(out_BTC).view_as(taken_BTHD), taken_BTHD, gate_BH[:, None, :, None])
        return mixed_BTHD.flatten(2).to(out_BTC.dtype)

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The last rows of all, as far as the next window does not read them again."""
        own = [_joined(parts) for parts in self._new.values()]
        some_BGTD = own[0][0]
        count, rows_BSMC, filled_B = max(0, some_BGTD.shape[2] - overlap), self._rows_BSMC, self._filled_B
        if rows_BSMC is None or filled_B is None:
            rows_BSMC, filled_B = self._cached.empty(len(some_BGTD))
        taken = min(count, self._cached.rows)
        next_BSMC = rows_BSMC.new_empty(rows_BSMC.shape, dtype=some_BGTD.dtype)
        earlier_BSMC, new_BSMC = next_BSMC.tensor_split([self._cached.rows - taken], dim=2)
        earlier_BSMC.copy_(rows_BSMC[:, :, taken:])
        for site, keys_values in enumerate(own):
            places = new_BSMC[:, site].unflatten(-1, (2, *some_BGTD.shape[1::2])).unbind(2)
            for place_BMGD, one_BGTD in zip(places, keys_values, strict=True):
                place_BMGD.copy_(one_BGTD[:, :, count - taken : count].transpose(1, 2))
        return next_BSMC, (filled_B + taken).clamp(max=self._cached.rows)

    def reorder(self, lane_B: torch.Tensor) -> None:
        """What is seen of the rows goes along, and what was gathered."""
        if self._rows_BSMC is not None and self._filled_B is not None and self.seen_B is not None:
            self._rows_BSMC, self._filled_B = self._rows_BSMC[lane_B], self._filled_B[lane_B]
            self.seen_B = self.seen_B[lane_B]
            self._visible_BM = None if self._visible_BM is None else self._visible_BM[lane_B]
            self._gates = tuple(gate_BH[lane_B] for gate_BH in self._gates)
        self._new = {
            layer: [tuple(one[lane_B] for one in part) for part in parts] for layer, parts in self._new.items()
        }


def _joined(parts: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    """Keys and values of all that was read of a window."""
    return parts[0] if len(parts) == 1 else tuple(torch.cat(part, dim=2) for part in zip(*parts, strict=True))


def _visible(seen_B: torch.Tensor, rows: int) -> torch.Tensor:
    """The last rows, as many as a lane sees. One that sees nothing looks at everything: a softmax over nothing is no
    number, and it is not taken anyway."""
    hidden_B = (rows - seen_B) * (seen_B > 0)
    return torch.arange(rows, device=seen_B.device) >= hidden_B[:, None]


def _taken(rows_BMC: torch.Tensor, visible_BM: torch.Tensor, q_BHTD: torch.Tensor, shape: Shape) -> torch.Tensor:
    """What heads take from the visible rows alone, [B, T, H, D]."""
    groups = shape.key_value_heads
    k_BGMD, v_BGMD = (one.unflatten(-1, (groups, -1)).transpose(1, 2) for one in rows_BMC.chunk(2, dim=-1))
    # Which row is seen is the same for all queries, so those of one group can stand one behind the other.
    q_BGRD = q_BHTD.unflatten(1, (groups, -1)).flatten(2, 3)
    taken_BGRD = F.scaled_dot_product_attention(q_BGRD, k_BGMD, v_BGMD, attn_mask=visible_BM[:, None, None])
    return taken_BGRD.reshape(q_BHTD.shape).transpose(1, 2)
