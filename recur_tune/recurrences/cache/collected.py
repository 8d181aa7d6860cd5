"""Rows that a window leaves: its keys and values are collected while it is read, and when it ends some stay.

Shape suffixes: B batch rows, T positions, S sites (layers that keep rows), M rows, K hidden size, H query heads,
G key-value heads, D head size, C columns (bytes of quantised rows), N rows and the window's positions, X heads of all
sites.
"""

from __future__ import annotations

import torch

from recur_tune.ops.matmul import product_dtype
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
from recur_tune.recurrences.cache.row_size import AS_READ
from recur_tune.recurrences.cache.rows import heads_of
from recur_tune.recurrences.cache.weights import KERNELS, CacheWeights
from recur_tune.recurrences.seam import Heads, Rows, State, WindowPass, load_kernels


class CachedWindowPass(WindowPass):
    """A window with cached rows of those before; it collects rows of its own."""

    whole_heads = True

    def __init__(self, cached: CacheWeights, rows_BSMC: torch.Tensor | None, filled_B: torch.Tensor | None) -> None:
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
        next_filled_B = (filled_B + count).clamp(max=cached.rows)
        dtype = product_dtype(some) if cached.bits == AS_READ else rows_BSMC.dtype
        if cached.keep != "recent":
            return self._best(rows_BSMC, filled_B, own, count, dtype), next_filled_B
        if self.fused:
            return self._copied(rows_BSMC, filled_B, own, count, dtype, None), next_filled_B
        own_BM, earlier_BM = recent(filled_B, count, cached.rows, cached.sinks)
        is_own_BM1, batch_B1 = (own_BM >= 0)[..., None], torch.arange(len(some), device=some.device)[:, None]
        own_BM, own_BT = own_BM.clamp(0, max(0, count - 1)), self._first(count)
        next_BSMC = rows_BSMC.new_empty(rows_BSMC.shape, dtype=dtype)
        for site, gathered in enumerate(own):
            earlier_BMC = rows_BSMC[batch_B1, site, earlier_BM]
            if count:
                own_BTC = cached.stored(self._rows(site, gathered, batch_B1, own_BT))
                earlier_BMC = torch.where(is_own_BM1, own_BTC[batch_B1, own_BM], earlier_BMC)
            next_BSMC[:, site] = earlier_BMC
        return next_BSMC, next_filled_B

    @torch.no_grad()
    def _best(
        self, rows_BSMC: torch.Tensor, filled_B: torch.Tensor, own: list[tuple[torch.Tensor, ...]], count: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        """The rows with the best scores, of the filled ones and the window's first `count`."""
        cached = self._cached
        batch_B1, own_BT = torch.arange(len(filled_B), device=filled_B.device)[:, None], self._first(count)

        def candidates(site: int) -> torch.Tensor:
            """As they are stored, the new ones too: a key's codes must not make it differ from its equal."""
            new_BTC = cached.stored(self._rows(site, own[site], batch_B1, own_BT))
            return torch.cat([rows_BSMC[:, site], new_BTC], dim=1)

        def score(site: int, layer: int) -> torch.Tensor:
            match cached.keep:
                case "keydiff" if self.fused:
                    places = None if cached.places is None else (cached.places[site], self.moved_B)
                    given = rows_BSMC[:, site], filled_B, own[site][0], count, places, cached.bits
                    made: torch.Tensor = load_kernels(KERNELS).key_differences(*given)
                    return made
                case "keydiff":
                    keys_BGND, _ = heads_of(cached.numbers(candidates(site)), cached.shape)
                    return key_difference(keys_BGND, cached.rows - filled_B)
                case "tova":
                    return last_attention(self._attention(layer))
                case _:
                    return mean_attention(self._attention(layer), cached.rows)

        # All layers choose at once: a sort of few numbers costs a GPU as much as one of many. Candidates are made twice
        # rather than held.
        scores = [score(site, layer) for site, layer in enumerate(self._new)]
        chosen_BXM = best(torch.cat(scores, dim=1), filled_B, cached.rows + count, cached.rows, cached.sinks)
        chosen_BSGM = chosen_BXM.unflatten(1, (len(own), -1))
        self._chosen = dict(zip(self._new, chosen_BSGM.unbind(1), strict=True))
        if self.fused:
            return self._copied(rows_BSMC, filled_B, own, count, dtype, chosen_BSGM)
        next_BSMC = torch.empty_like(rows_BSMC, dtype=dtype)
        for site, chosen_BGM in enumerate(chosen_BSGM.unbind(1)):
            next_BSMC[:, site] = taken(candidates(site), chosen_BGM)
        return next_BSMC

    def _copied(
        self, rows_BSMC: torch.Tensor, filled_B: torch.Tensor, own: list[tuple[torch.Tensor, ...]], count: int,
        dtype: torch.dtype, chosen_BSGM: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """The next rows, by a kernel for each layer: those that were chosen, or the last of all."""
        cached = self._cached
        places = None if cached.places is None else (cached.places, self.moved_B)
        given = rows_BSMC, filled_B, own, count, cached.sinks, places, dtype, cached.bits, chosen_BSGM
        made: torch.Tensor = load_kernels(KERNELS).keep_rows(*given)
        return made

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
        numbers_BSMC = cached.numbers(rows_BSMC.flatten(1, 2), self.fused).unflatten(1, (len(sites), -1))
        keys, values = taken_apart(numbers_BSMC, self._own(layers, count), index_BSGN)
        return Rows(keys, values, index_BSGN >= (cached.rows - filled_B.long()).view(-1, 1, 1, 1))

    def _first(self, count: int) -> torch.Tensor:
        """The window's first positions, for every batch row, [B, T]."""
        some = next(iter(self._new.values()))[0]
        return torch.arange(count, device=some.device).expand(len(some), -1)

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
        return self._cached.numbers(self._rows_BSMC[:, self._cached.sites.index(layer)], self.fused)
