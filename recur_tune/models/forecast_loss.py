"""Squared error of forecasts, and its gradients.

Shape suffixes: W windows, B batch rows, T positions, S time steps of a window, N positions over all batch rows,
K hidden size, H time steps of a forecast.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from recur_tune.data.batches import WindowBatch
from recur_tune.models.series import SeriesModel


class ForecastScorer:
    """Scores windows by the squared error of all forecasts that begin in them, each on its own."""

    is_separate = True

    def __init__(self, model: SeriesModel, batch: WindowBatch, fused: bool) -> None:
        """`fused` changes nothing: there is one matrix product."""
        self._model, self._values_WBS, self._targets_WBTH = model, batch.inputs_WBT, batch.targets_WBT
        self._totals = {
            one: torch.zeros_like(one) for head in model.heads for one in head.parameters() if one.requires_grad
        }

    def see(self, window: int, top_NK: torch.Tensor) -> None:
        """Not needed."""

    @torch.enable_grad()
    def score(self, window: int, top_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A window's summed loss, and its gradient; a missing target is not scored."""
        values_BS, target_BTH = self._values_WBS[window], self._targets_WBTH[window]
        with torch.autocast(top_NK.device.type, enabled=False):
            positions = self._model.positions(values_BS.shape[1])
            top_BTK = top_NK.detach().unflatten(0, (-1, positions)).requires_grad_(top_NK.requires_grad)
            rows_BTK = top_BTK.view_as(top_BTK)  # torch counts no FLOPs of modules on leaves
            error_BTH = self._model.forecast(rows_BTK, values_BS) - target_BTH.nan_to_num()
            loss = error_BTH.masked_fill(target_BTH.isnan(), 0.0).square().sum()
            wanted = [*self._totals, *([top_BTK] if top_BTK.requires_grad else [])]
            gradients = torch.autograd.grad(loss, wanted)
        for total, gradient in zip(self._totals.values(), gradients, strict=False):
            total += gradient
        grad_BTK = gradients[-1] if top_BTK.requires_grad else torch.zeros_like(top_BTK)
        return loss.detach(), grad_BTK.flatten(0, 1)

    def gradients(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Of the heads."""
        yield from self._totals.items()
