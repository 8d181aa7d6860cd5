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

from recur_tune.model.recurrence import Heads, Passage, Recurrence, State, layers_at
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
        self._new: dict[int, list[torch.Tensor]] = {layer: [] for layer in cached.sites}  # parts, each [B, T, C]

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
        self._new[layer].append(torch.cat([one.detach().transpose(1, 2).flatten(2) for one in keys_values], dim=-1))
        own, rows_BSMC, seen_B, visible_BM = self._cached, self._rows_BSMC, self.seen_B, self._visible_BM
        if rows_BSMC is None or seen_B is None or visible_BM is None or own.gates is None or own.scales is None:
            return out_BTC
        site = own.sites.index(layer)
        rows_BMC = (rows_BSMC[:, site] * own.scales[site]).to(q_BHTD.dtype)
        taken_BTHD, gate_H1 = _taken(rows_BMC, visible_BM, q_BHTD, own.shape), own.gates[site].sigmoid()[:, None]
        mixed_BTHD = (1 - gate_H1) * out_BTC.view_as(taken_BTHD) + gate_H1 * taken_BTHD
        return torch.where((seen_B > 0)[:, None, None], mixed_BTHD.flatten(2).to(out_BTC.dtype), out_BTC)

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The last rows of all, as far as the next window does not read them again."""
        parts = [torch.cat(part, dim=1) if len(part) > 1 else part[0] for part in self._new.values()]
        count = max(0, parts[0].shape[1] - overlap)
        new_BSTC = torch.stack([part[:, max(0, count - self._cached.rows) : count] for part in parts], dim=1)
        lanes, _, taken, _ = new_BSTC.shape
        rows_BSMC, filled_B = self._rows_BSMC, self._filled_B
        if rows_BSMC is None or filled_B is None:
            rows_BSMC, filled_B = self._cached.empty(lanes)
        next_BSMC = torch.cat([rows_BSMC[:, :, taken:].to(new_BSTC.dtype), new_BSTC], dim=2)
        return next_BSMC, (filled_B + taken).clamp(max=self._cached.rows)

    def reorder(self, lane_B: torch.Tensor) -> None:
        """What is seen of the rows goes along, and what was gathered."""
        if self._rows_BSMC is not None and self._filled_B is not None and self.seen_B is not None:
            self._rows_BSMC, self._filled_B = self._rows_BSMC[lane_B], self._filled_B[lane_B]
            self.seen_B = self.seen_B[lane_B]
            self._visible_BM = None if self._visible_BM is None else self._visible_BM[lane_B]
        self._new = {layer: [part[lane_B] for part in parts] for layer, parts in self._new.items()}


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
