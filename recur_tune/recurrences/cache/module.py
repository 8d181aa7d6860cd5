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
so the document's first rows stay (StreamingLLM). With scores (`keep.py`) only half of the rows are the last ones.

Apart from the window, with a gate, neither rows nor queries have rotary position embeddings. A row is found by its
content alone, so there may be more rows than the body has positions.

Shape suffixes: B batch rows, T positions, S sites (layers that keep rows), M rows, K hidden size, H query heads,
G key-value heads, D head size, C columns, P places, N rows and the window's positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.ops.matmul import product_dtype
from recur_tune.ops.reference import in_places
from recur_tune.recurrences.cache.keep import (
    attention_received,
    best,
    key_difference,
    last_attention,
    mean_attention,
    recent,
    taken,
)
from recur_tune.recurrences.cache.leave import oldest, others, taken_apart
from recur_tune.recurrences.cache.measure import PlaceMeasure
from recur_tune.recurrences.cache.rows import attend, heads_of, keys_behind, visible
from recur_tune.recurrences.seam import (
    CLOSED_GATE,
    Heads,
    Recurrence,
    Rows,
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
        cache_keep: str = "recent",
        cache_sinks: int = 4,
    ) -> None:
        super().__init__(shape)
        self.keep = cache_keep
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

    def reset_from_scratch(self) -> None:
        """Memorizing Transformers' gates, half open."""
        if self.gates is not None:
            nn.init.zeros_(self.gates)

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
        # Where attention decides which rows stay: queries that are not in a sum yet, and this sum, [B, G, N].
        self._queries: dict[int, torch.Tensor] = {}
        self._received: dict[int, torch.Tensor] = {}
        self._chosen: dict[int, torch.Tensor] = {}  # by layers, the numbers of the candidates with the best scores

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The document's first rows, and the last or the best of all, as far as the next window does not read them
        again."""
        own = list(self._new.values())
        some, cached = own[0][0], self._cached
        count, rows_BSMC, filled_B = max(0, some.shape[-2] - overlap), self._rows_BSMC, self._filled_B
        if rows_BSMC is None or filled_B is None:
            rows_BSMC, filled_B = cached.empty(len(some))
        dtype, next_filled_B = product_dtype(some), (filled_B + count).clamp(max=cached.rows)
        if cached.keep != "recent":
            return self._best(rows_BSMC, filled_B, own, count, dtype), next_filled_B
        if self.fused:
            places = None if cached.places is None else (cached.places, self.moved_B)
            given = rows_BSMC, filled_B, own, count, cached.sinks, places, dtype
            return load_kernels(_KERNELS).keep_rows(*given), next_filled_B
        own_BM, earlier_BM = recent(filled_B, count, cached.rows, cached.sinks)
        is_own_BM1, batch_B1 = (own_BM >= 0)[..., None], torch.arange(len(some), device=some.device)[:, None]
        own_BM = own_BM.clamp(0, max(0, count - 1))
        next_BSMC = rows_BSMC.new_empty(rows_BSMC.shape, dtype=dtype)
        for site, gathered in enumerate(own):
            earlier_BMC = rows_BSMC[batch_B1, site, earlier_BM]
            next_BSMC[:, site] = torch.where(is_own_BM1, self._rows(site, gathered, batch_B1, own_BM), earlier_BMC)
        return next_BSMC, next_filled_B

    @torch.no_grad()
    def _best(
        self, rows_BSMC: torch.Tensor, filled_B: torch.Tensor, own: list[tuple[torch.Tensor, ...]], count: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        """The rows with the best scores, of the filled ones and the window's first `count`."""
        cached, next_BSMC = self._cached, torch.empty_like(rows_BSMC, dtype=dtype)
        batch_B1 = torch.arange(len(filled_B), device=filled_B.device)[:, None]
        own_BT = torch.arange(count, device=filled_B.device).expand(len(filled_B), -1)

        def candidates(site: int) -> torch.Tensor:
            return torch.cat([rows_BSMC[:, site], self._rows(site, own[site], batch_B1, own_BT)], dim=1)

        # All layers choose at once: a sort of few numbers costs a GPU as much as one of many. Candidates are made twice
        # rather than held.
        scores = [self._score(site, layer, candidates, filled_B) for site, layer in enumerate(self._new)]
        chosen_BXM = best(torch.cat(scores, dim=1), filled_B, cached.rows + count, cached.rows, cached.sinks)
        for site, layer in enumerate(self._new):
            self._chosen[layer] = chosen_BXM.unflatten(1, (len(own), -1))[:, site]
            next_BSMC[:, site] = taken(candidates(site), self._chosen[layer])
        return next_BSMC

    def _score(
        self, site: int, layer: int, candidates: Callable[[int], torch.Tensor], filled_B: torch.Tensor
    ) -> torch.Tensor:
        """Score of a layer's candidates, [B, G, N]."""
        cached = self._cached
        match cached.keep:
            case "keydiff":
                return key_difference(heads_of(candidates(site), cached.shape)[0], cached.rows - filled_B)
            case "tova":
                return last_attention(self._attention(layer))
            case _:
                return mean_attention(self._attention(layer), cached.rows)

    @torch.no_grad()
    def leaving(self, layers: list[int], overlap: int) -> Rows:
        """The candidates that do not stay."""
        cached, some = self._cached, self._new[layers[0]][0]
        count, rows_BSMC, filled_B = max(0, some.shape[-2] - overlap), self._rows_BSMC, self._filled_B
        if rows_BSMC is None or filled_B is None:
            rows_BSMC, filled_B = cached.empty(len(some))
        sites = [cached.sites.index(layer) for layer in layers]
        if cached.keep == "recent":
            index_BN = oldest(filled_B, count, cached.rows, cached.sinks)
            index_BSGN = index_BN[:, None, None].expand(-1, len(sites), cached.shape.key_value_heads, -1)
        else:
            index_BSGN = others(torch.stack([self._chosen[layer] for layer in layers], dim=1), cached.rows + count)
        if len(sites) < rows_BSMC.shape[1]:  # one by one: a list as an index would be copied to a GPU
            rows_BSMC = torch.stack([rows_BSMC[:, site] for site in sites], dim=1)
        keys, values = taken_apart(rows_BSMC, self._own(layers, count), index_BSGN)
        return Rows(keys, values, index_BSGN >= (cached.rows - filled_B.long()).view(-1, 1, 1, 1))

    def _own(self, layers: list[int], count: int) -> list[torch.Tensor]:
        """Keys and values of the window's first positions as rows have them, each [B, S, G, T, D]."""
        return [torch.stack([self._new[layer][part][:, :, :count] for layer in layers], dim=1) for part in (0, 1)]

    @torch.no_grad()
    def _attention(self, layer: int) -> torch.Tensor:
        """Attention to rows and to the window's positions, summed over the queries so far, [B, G, N]."""
        if layer not in self._queries:
            return self._received[layer]
        q_BHTD, k_BGND = self._looked(layer, self._queries[layer], self._new[layer][0])
        seen_B = torch.zeros(len(k_BGND), device=k_BGND.device) if self.seen_B is None else self.seen_B
        received_BGN = attention_received(q_BHTD, k_BGND, self._cached.rows - seen_B)
        if (earlier_BGN := self._received.get(layer)) is not None:
            received_BGN[..., : earlier_BGN.shape[-1]] += earlier_BGN
        return received_BGN

    def _looked(self, layer: int, q_BHTD: torch.Tensor, k_BGTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, and keys of rows and of the window's positions, as attention takes them."""
        raise NotImplementedError

    def _rows(
        self, site: int, gathered: tuple[torch.Tensor, ...], batch_B1: torch.Tensor, own_BM: torch.Tensor
    ) -> torch.Tensor:
        """Rows [B, M, C] made of the window's, gathered as [B, G, T, D], at these of its positions."""
        return torch.cat([one_BGTD.transpose(1, 2)[batch_B1, own_BM].flatten(2) for one_BGTD in gathered], dim=-1)

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders the cached rows and what was collected."""
        self.rest()
        for name in ("_rows_BSMC", "_filled_B", "seen_B", "moved_B"):
            if (value := getattr(self, name)) is not None:
                setattr(self, name, value[index_B])
        self._new = {layer: tuple(one[index_B] for one in part) for layer, part in self._new.items()}
        self._queries = {layer: one[index_B] for layer, one in self._queries.items()}
        self._received = {layer: one[index_B] for layer, one in self._received.items()}
        self._chosen.clear()

    def rest(self) -> None:
        """Sums up the attention of queries, where that of all counts."""
        if self._cached.keep == "h2o":
            self._received = {layer: self._attention(layer) for layer in self._new}
            self._queries.clear()

    def _gather(self, layer: int, heads: Heads) -> torch.Tensor:
        """Keep the window's keys and values, and return its queries."""
        q_BHTD, *keys_values = heads()
        match self._cached.keep:
            case "tova":
                self._queries[layer] = q_BHTD[:, :, -1:].detach().clone()  # a view would hold them all
            case "h2o":
                self._queries[layer] = q_BHTD.detach()
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

    def _looked(self, layer: int, q_BHTD: torch.Tensor, k_BGTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """With positions, as in the window's own attention."""
        rows_BMC = self.keys_values(layer)
        if rows_BMC is not None:
            rows_BMC = in_places(rows_BMC, self.places(layer), self.seen_B)
        k_BGND = keys_behind(rows_BMC, k_BGTD, self._cached.rows, self._cached.shape)
        if self.rotary is None:
            return q_BHTD, k_BGND
        return self.rotary(q_BHTD, k_BGTD.shape[2] - q_BHTD.shape[2]), self.rotary(k_BGND, -self._cached.rows)

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

    def _looked(self, layer: int, q_BHTD: torch.Tensor, k_BGTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As later windows look for them: the window's positions as if they were rows already."""
        cached = self._cached
        key_scale_G1D = self._scales[cached.sites.index(layer)].chunk(2)[0].unflatten(0, (k_BGTD.shape[1], 1, -1))
        k_BGND = keys_behind(self._site(layer), k_BGTD, cached.rows, cached.shape)
        return q_BHTD, (k_BGND * key_scale_G1D).to(q_BHTD.dtype)

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
        taken_BTHD = single(attend((rows_BMC * scale_C).to(q_BHTD.dtype), visible_BM, q_BHTD, own.shape))
        mixed_BTHD = torch.lerp(single(out_BTC).view_as(taken_BTHD), taken_BTHD, gate_BH[:, None, :, None])
        return mixed_BTHD.flatten(2).to(out_BTC.dtype)

    def _look(self) -> None:
        """Make the mask of the rows that are seen, and the gates, which are closed where there are none."""
        if self.seen_B is not None and self._cached.gates is not None:
            self._visible_BM = visible(self.seen_B, self._cached.rows)
            self._gates = torch.where((self.seen_B > 0)[:, None, None], gate(self._cached.gates), 0.0).unbind(1)

    def rest(self) -> None:
        """Lets go of mask and gates."""
        super().rest()
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
        super().rest()
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

    def _own(self, layers: list[int], count: int) -> list[torch.Tensor]:
        own, cached = super()._own(layers, count), self._cached
        assert cached.places is not None
        place_1T = torch.arange(count, device=own[0].device)[None]
        place_BT = place_1T if self.moved_B is None else place_1T + self.moved_B[:, None]
        places_SPC = torch.stack([cached.places[cached.sites.index(layer)] for layer in layers])
        added_SBTC = places_SPC[:, place_BT]
        of_parts = added_SBTC.unflatten(-1, (2, cached.shape.key_value_heads, -1)).permute(3, 1, 0, 4, 2, 5)
        return [one - added for one, added in zip(own, of_parts, strict=True)]
