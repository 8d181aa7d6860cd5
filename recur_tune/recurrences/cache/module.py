"""Key-value cache: the last keys and values of layers, to which the next window attends (Transformer-XL, Memorizing
Transformers). A row is a key and a value. No gradient goes back to the windows that rows come from.

Positions of rows. In one softmax with a window's own keys, rows stand before the window, one behind the other. Rotary
position embeddings are applied to kept keys at their present positions, as in a longer window. Learned positions are
part of keys and values from the start. But a mean over many texts shows what each position adds to a layer's keys and
values (`places`). So rows are kept without the part of their old position, and get that of their present one: the first
positions, behind which the window's own begin. On a pretrained GPT-2 this is within a few thousandths of a nat of
reading the rows' text again. A learned offset, zero at first, distinguishes rows from the window's own.

Which rows are kept: a document's first rows and the last of all. A pretrained body uses the first token as an attention
sink: heads with nothing to attend to put their weight there. A window that follows rows has no such token of its own,
so the document's first rows stay (StreamingLLM).

Apart from the window, with a gate, neither rows nor queries have rotary position embeddings. A row is found by its
content alone, so there may be more rows than the body has positions.

Shape suffixes: B batch rows, T positions, S sites (layers that keep rows), M rows, K hidden size, H query heads,
G key-value heads, D head size, R queries of a group, C columns, P places.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.ops.matmul import product_dtype
from recur_tune.recurrences.seam import (
    CLOSED_GATE,
    CalibrationPass,
    Heads,
    Recurrence,
    State,
    WindowPass,
    gate,
    layers_at,
    load_kernels,
    single,
)

_KERNELS = "recur_tune.recurrences.cache.kernels"


class Cached(Recurrence):
    """A key-value cache of layers, to which the next window attends.

    The state is these rows, and how many of them each batch row has filled; these come last, in the text's order. A row
    is a key and a value side by side, before rotary positions or less what learned ones add.
    """

    stops_gradients = True
    places: torch.Tensor | None

    def __init__(
        self,
        shape: Shape,
        cache_rows: int = 128,
        cache_layer: int | Literal["all"] = "all",
        cache_join: str = "softmax",
        cache_sinks: int = 4,
    ) -> None:
        super().__init__(shape)
        self.rows, self.sinks, gated = cache_rows, min(cache_sinks, cache_rows), cache_join == "gate"
        self.sites = layers_at(cache_layer, shape)
        sites, self.columns = len(self.sites), 2 * shape.key_value_heads * shape.head_size
        placed = shape.learned_positions and not gated
        self.register_buffer("places", torch.zeros(sites, shape.context, self.columns) if placed else None)
        # Apart from the window a common offset of all keys would change nothing, so channels have scales instead.
        self.offsets = None if gated else nn.Parameter(torch.zeros(sites, self.columns))
        self.scales = nn.Parameter(torch.ones(sites, self.columns)) if gated else None
        self.gates = nn.Parameter(torch.full((sites, shape.heads), CLOSED_GATE)) if gated else None

    def reset(self, module: nn.Module) -> None:
        """Initialise this module or one inside it; Hugging Face calls it for each."""
        for parameter, value in ((self.offsets, 0.0), (self.scales, 1.0), (self.gates, CLOSED_GATE)):
            if parameter is not None:
                nn.init.constant_(parameter, value)

    def calibrated_by(self) -> PlaceMeasure | None:
        """The measurement of what positions add to keys and values, where they are learned."""
        return None if self.places is None else PlaceMeasure(self.sites, self.places)

    def empty(self, batch_size: int) -> State:
        """Rows of zeros, of which none is filled."""
        like = next(self.parameters())
        rows_BSMC = like.new_zeros(batch_size, len(self.sites), self.rows, self.columns)
        return rows_BSMC, like.new_zeros(batch_size, dtype=torch.float32)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> CachedWindowPass:
        """Where a document begins, no row is filled."""
        window_pass = (
            GatedWindowPass if self.gates is not None else JoinedWindowPass if self.places is None else PlacedWindowPass
        )
        if state is None:
            return window_pass(self, None, None)
        rows_BSMC, filled_B = (one.detach() for one in state)
        if fresh_B is not None:
            filled_B = filled_B.masked_fill(fresh_B, 0)
        return window_pass(self, rows_BSMC, filled_B)


class CachedWindowPass(WindowPass):
    """A window with cached rows of those before; it collects rows of its own."""

    whole_heads = True

    def __init__(self, cached: Cached, rows_BSMC: torch.Tensor | None, filled_B: torch.Tensor | None) -> None:
        self._cached, self._rows_BSMC, self._filled_B = cached, rows_BSMC, filled_B
        self.seen_B = None if filled_B is None else filled_B.long()
        self._new: dict[int, tuple[torch.Tensor, ...]] = {}  # the window's keys and values, [B, G, T, D]

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The document's first rows and the last of all, as far as the next window does not read them again."""
        own = list(self._new.values())
        some, cached = own[0][0], self._cached
        count, rows_BSMC, filled_B = max(0, some.shape[-2] - overlap), self._rows_BSMC, self._filled_B
        if rows_BSMC is None or filled_B is None:
            rows_BSMC, filled_B = cached.empty(len(some))
        dtype, next_filled_B = product_dtype(some), (filled_B + count).clamp(max=cached.rows)
        if self.fused:
            places = None if cached.places is None else (cached.places, self.moved_B)
            given = rows_BSMC, filled_B, own, count, cached.sinks, places, dtype
            return load_kernels(_KERNELS).keep_rows(*given), next_filled_B
        # The source of each row: its number among the filled rows and then the window's own.
        all_B1 = filled_B.long()[:, None] + count
        kept_BM = torch.arange(cached.rows, device=some.device) - (cached.rows - all_B1).clamp(min=0)
        kept_BM = kept_BM + (all_B1 - cached.rows).clamp(min=0) * (kept_BM >= cached.sinks)
        own_BM = kept_BM - filled_B.long()[:, None]  # as positions of the window
        earlier_BM = (kept_BM + cached.rows - filled_B.long()[:, None]).clamp(0, cached.rows - 1)
        is_own_BM1, batch_B1 = (own_BM >= 0)[..., None], torch.arange(len(some), device=some.device)[:, None]
        own_BM = own_BM.clamp(0, max(0, count - 1))
        next_BSMC = rows_BSMC.new_empty(rows_BSMC.shape, dtype=dtype)
        for site, gathered in enumerate(own):
            earlier_BMC = rows_BSMC[batch_B1, site, earlier_BM]
            next_BSMC[:, site] = torch.where(is_own_BM1, self._rows(site, gathered, batch_B1, own_BM), earlier_BMC)
        return next_BSMC, next_filled_B

    def _rows(
        self, site: int, gathered: tuple[torch.Tensor, ...], batch_B1: torch.Tensor, own_BM: torch.Tensor
    ) -> torch.Tensor:
        """Rows [B, M, C] made of the window's, gathered as [B, G, T, D], at these of its positions."""
        return torch.cat([one_BGTD.transpose(1, 2)[batch_B1, own_BM].flatten(2) for one_BGTD in gathered], dim=-1)

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders the cached rows and those that were collected."""
        for name in ("_rows_BSMC", "_filled_B", "seen_B", "moved_B"):
            if (value := getattr(self, name)) is not None:
                setattr(self, name, value[index_B])
        self._new = {layer: tuple(one[index_B] for one in part) for layer, part in self._new.items()}
        self.rest()

    def _gather(self, layer: int, heads: Heads) -> torch.Tensor:
        """Keep the window's keys and values, and return its queries."""
        q_BHTD, *keys_values = heads()
        self._new[layer] = tuple(one.detach() for one in keys_values)
        return q_BHTD

    def _site(self, layer: int) -> torch.Tensor | None:
        """The rows [B, M, C] of a layer."""
        if self._rows_BSMC is None or layer not in self._cached.sites:
            return None
        return self._rows_BSMC[:, self._cached.sites.index(layer)]


class JoinedWindowPass(CachedWindowPass):
    """Cached keys and values in one softmax with the window's own."""

    def __init__(self, cached: Cached, rows_BSMC: torch.Tensor | None, filled_B: torch.Tensor | None) -> None:
        super().__init__(cached, rows_BSMC, filled_B)
        assert cached.offsets is not None
        self._offsets = cached.offsets.unbind()  # of every site, [C]

    def keys_values(self, layer: int) -> torch.Tensor | None:
        """The rows of this layer."""
        rows_BMC = self._site(layer)
        return None if rows_BMC is None else rows_BMC + self._offsets[self._cached.sites.index(layer)]

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Collect the window's rows."""
        if layer in self._cached.sites:
            self._gather(layer, heads)
        return out_BTC


class GatedWindowPass(CachedWindowPass):
    """A separate softmax over the cached rows, and a gate for each head that mixes both outputs."""

    def __init__(self, cached: Cached, rows_BSMC: torch.Tensor | None, filled_B: torch.Tensor | None) -> None:
        super().__init__(cached, rows_BSMC, filled_B)
        self._visible_BM: torch.Tensor | None = None
        self._gates: tuple[torch.Tensor, ...] = ()  # of every site, [B, H]
        self._look()
        assert cached.scales is not None
        self._scales = cached.scales.unbind()  # of every site, [C]

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Collect the window's rows, and mix in attention to the cached ones."""
        if layer not in self._cached.sites:
            return out_BTC
        q_BHTD = self._gather(layer, heads)
        if not self._gates:
            self._look()
        own, rows_BMC, visible_BM = self._cached, self._site(layer), self._visible_BM
        if rows_BMC is None or visible_BM is None:
            return out_BTC
        site = own.sites.index(layer)
        scale_C, gate_BH = self._scales[site], self._gates[site]
        if self.fused:
            assert self.seen_B is not None, "rows come with their count"
            given = q_BHTD, out_BTC, rows_BMC, scale_C, gate_BH, self.seen_B
            return load_kernels(_KERNELS).attend_cached(*given)
        taken_BTHD = single(_taken((rows_BMC * scale_C).to(q_BHTD.dtype), visible_BM, q_BHTD, own.shape))
        mixed_BTHD = torch.lerp(single(out_BTC).view_as(taken_BTHD), taken_BTHD, gate_BH[:, None, :, None])
        return mixed_BTHD.flatten(2).to(out_BTC.dtype)

    def _look(self) -> None:
        """Make the mask of the rows that are seen, and the gates, which are closed where there are none."""
        if self.seen_B is not None and self._cached.gates is not None:
            self._visible_BM = _visible(self.seen_B, self._cached.rows)
            self._gates = torch.where((self.seen_B > 0)[:, None, None], gate(self._cached.gates), 0.0).unbind(1)

    def rest(self) -> None:
        """Lets go of mask and gates."""
        self._visible_BM, self._gates = None, ()


class PlacedWindowPass(JoinedWindowPass):
    """The same with learned positions: rows get what their present places add."""

    def __init__(self, cached: Cached, rows_BSMC: torch.Tensor | None, filled_B: torch.Tensor | None) -> None:
        super().__init__(cached, rows_BSMC, filled_B)
        self.moved_B = self.seen_B
        self._added: tuple[torch.Tensor, ...] = ()  # by every site's first places, offset included, [M, C]
        if self.seen_B is not None:
            self._add()

    def keys_values(self, layer: int) -> torch.Tensor | None:
        """The rows of this layer."""
        return self._site(layer)

    def places(self, layer: int) -> torch.Tensor | None:
        """What the first places add."""
        if not self._added:
            self._add()
        return self._added[self._cached.sites.index(layer)]

    def rest(self) -> None:
        """Lets go of what places add."""
        self._added = ()

    def _add(self) -> None:
        cached = self._cached
        assert cached.places is not None and cached.offsets is not None
        self._added = (cached.places[:, : cached.rows] + cached.offsets[:, None]).unbind()

    def _rows(
        self, site: int, gathered: tuple[torch.Tensor, ...], batch_B1: torch.Tensor, own_BM: torch.Tensor
    ) -> torch.Tensor:
        place_BM = own_BM if self.moved_B is None else own_BM + self.moved_B[:, None]
        assert self._cached.places is not None
        return super()._rows(site, gathered, batch_B1, own_BM) - F.embedding(place_BM, self._cached.places[site])


class PlaceMeasure(CalibrationPass):
    """What places add: the mean of keys and values at each, over all texts."""

    def __init__(self, sites: list[int], places_SPC: torch.Tensor) -> None:
        self._places_SPC, self._texts = places_SPC, 0
        self._sums: dict[int, torch.Tensor | float] = dict.fromkeys(sites, 0.0)

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Sum up keys and values; the output stays as it is."""
        if layer in self._sums:
            _, *keys_values = heads()
            sums = [single(one_BGTD).sum(0).transpose(0, 1).flatten(1) for one_BGTD in keys_values]
            self._sums[layer] += torch.cat(sums, dim=-1)
            self._texts += len(out_BTC)
        return out_BTC

    def take(self, weight: float) -> None:
        """Store the means; places that no text reaches get that of the last one reached."""
        sums_STC = torch.stack([torch.as_tensor(one) for one in self._sums.values()])
        places_SPC, length = self._places_SPC, sums_STC.shape[1]
        mean_STC = sums_STC * (len(self._sums) / self._texts)  # every site has counted the texts
        places_SPC[:, :length].lerp_(mean_STC.to(places_SPC.dtype), weight)
        if weight == 1:
            places_SPC[:, length:] = places_SPC[:, length - 1 : length]


def _visible(seen_B: torch.Tensor, rows: int) -> torch.Tensor:
    """The last `seen_B` rows. Where that is none, all: a softmax over nothing is NaN, and the gate closes there."""
    hidden_B = (rows - seen_B) * (seen_B > 0)
    return torch.arange(rows, device=seen_B.device) >= hidden_B[:, None]


def _taken(rows_BMC: torch.Tensor, visible_BM: torch.Tensor, q_BHTD: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Attention to the visible rows alone, [B, T, H, D]."""
    groups = shape.key_value_heads
    k_BGMD, v_BGMD = (one.unflatten(-1, (groups, -1)).transpose(1, 2) for one in rows_BMC.chunk(2, dim=-1))
    # All queries see the same rows, so those of one group can stand one behind the other.
    q_BGRD = q_BHTD.unflatten(1, (groups, -1)).flatten(2, 3)
    taken_BGRD = F.scaled_dot_product_attention(q_BGRD, k_BGMD, v_BGMD, attn_mask=visible_BM[:, None, None])
    return taken_BGRD.reshape(q_BHTD.shape).transpose(1, 2)
