"""Rows in a window: in one softmax with its own keys, or in a softmax of their own behind a gate.

Shape suffixes: B batch rows, T positions, S sites (layers that keep rows), M rows, H query heads, G key-value heads,
D head size, C columns, P places, N rows and the window's positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from recur_tune.ops.reference import in_places
from recur_tune.recurrences.cache.collected import CachedWindowPass
from recur_tune.recurrences.cache.rows import attend, keys_behind, visible
from recur_tune.recurrences.cache.weights import CacheWeights
from recur_tune.recurrences.seam import Heads, gate, load_kernels, single

_KERNELS = "recur_tune.recurrences.cache.kernels"


class JoinedWindowPass(CachedWindowPass):
    """Cached keys and values in one softmax with the window's own."""

    def __init__(self, cached: CacheWeights, rows_BSMC: torch.Tensor | None, filled_B: torch.Tensor | None) -> None:
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


class PlacedWindowPass(JoinedWindowPass):
    """The same with learned positions: rows get what their present places add."""

    def __init__(self, cached: CacheWeights, rows_BSMC: torch.Tensor | None, filled_B: torch.Tensor | None) -> None:
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


class GatedWindowPass(CachedWindowPass):
    """A separate softmax over the cached rows, and a gate for each head that mixes both outputs."""

    def __init__(self, cached: CacheWeights, rows_BSMC: torch.Tensor | None, filled_B: torch.Tensor | None) -> None:
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
