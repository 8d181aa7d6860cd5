"""Base class of bodies that read series: numbers in, numbers of the next time steps out.

A batch row is one column of a chain; the columns of a chain lie one behind the other.

Shape suffixes: B batch rows, T positions, S time steps of a window, P time steps of a position, K hidden size,
H time steps of a forecast.
"""

from __future__ import annotations

import torch
from torch import nn

from recur_tune.models.windowed import Windowed, WindowedConfig


class SeriesConfig(WindowedConfig):
    """What the configurations of such bodies have in common.

    Attributes:
        columns: Of the series.
        patch: Time steps of a position.
        horizon: Time steps that are forecast from every position.
        hidden_dropout: Rate, where it has any.
    """

    columns: int = 1
    patch: int = 1
    horizon: int = 1
    hidden_dropout: float = 0.0


class SeriesModel(Windowed):
    """A body that reads series."""

    opened_by, scored_by = "AutoModel", "recur_tune.models.forecast_loss:ForecastScorer"

    def forecast(self, top_BTK: torch.Tensor, values_BS: torch.Tensor) -> torch.Tensor:
        """Forecasts from positions of a window, [B, T, H], in the units of its values.

        Args:
            top_BTK: What `read` made of the window, at its last positions or at all of them.
            values_BS: The window.
        """
        raise NotImplementedError

    def forecast_at_end(self, top_BTK: torch.Tensor, values_BS: torch.Tensor) -> torch.Tensor:
        """The forecasts from a window's end alone, [B, H]."""
        return self.forecast(top_BTK[:, -1:], values_BS)[:, 0]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Forecasts from a window's end: [rows, steps] -> [rows, horizon]. To go from window to window, call `read`."""
        return self.forecast_at_end(self.read(values, leave_state=False).top_BTK, values)

    def positions(self, window: int) -> int:
        """Positions of what `read` makes of a window of so many time steps."""
        return window // self.config.patch

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The modules that `forecast` uses; all else is used by `read`."""
        raise NotImplementedError

    def blank(self, windows: int, chains: int, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Zeros, in a row for each column of a chain."""
        rows = chains * self.config.columns
        inputs = torch.zeros((windows, rows, window))
        return inputs, torch.zeros((windows, rows, window // self.config.patch, self.config.horizon))
