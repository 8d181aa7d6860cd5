"""What places add to keys and values, where positions are learned: measured on texts before training.

Shape suffixes: B batch rows, T positions, S sites (layers that keep rows), G key-value heads, D head size, P places, C
columns.
"""

from __future__ import annotations

import torch

from recur_tune.recurrences.seam import CalibrationPass, Heads, single


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
