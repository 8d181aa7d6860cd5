"""DLinear: a window's moving average and what is left of it, each mapped to the horizon by one matrix (*Are
Transformers Effective for Time Series Forecasting?*).

The same two matrices serve all columns. It has no layers, so no recurrence has a place in it.

Shape suffixes: as in `series.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from recur_tune.models.series import SeriesConfig, SeriesModel
from recur_tune.models.windowed import WindowOutput
from recur_tune.ops.body import Body

_KERNEL = 25  # time steps of the moving average


class DLinearConfig(SeriesConfig):
    """DLinear's configuration."""

    model_type = "recurrent_dlinear"


class DLinear(SeriesModel, PreTrainedModel):
    """Two matrices."""

    config_class = DLinearConfig
    dropout_fields = ()

    def __init__(self, config: DLinearConfig) -> None:
        super().__init__(config)
        self.trend, self.rest = (nn.Linear(config.patch, config.horizon) for _ in range(2))
        self.add_recurrence()
        self.post_init()

    def find_body(self) -> Body:
        """Nothing: `forecast` does everything."""
        return Body(None, None, None, None, (), None)  # type: ignore[arg-type]

    def read(self, values_BS: torch.Tensor, *given: Any, **named: Any) -> WindowOutput:
        """The window as it is, at a single position."""
        return WindowOutput(values_BS[:, None].to(self.trend.weight.dtype), None)

    def forecast(self, top_BTK: torch.Tensor, values_BS: torch.Tensor) -> torch.Tensor:
        """Both parts' forecasts, added up."""
        ends = (_KERNEL - 1) // 2
        slow_BTK = F.avg_pool1d(F.pad(top_BTK, (ends, ends), mode="replicate"), _KERNEL, stride=1)
        return self.trend(slow_BTK) + self.rest(top_BTK - slow_BTK)

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """Both matrices."""
        return self.trend, self.rest

    def _init_weights(self, module: nn.Module) -> None:
        """As torch initialises them."""
        if isinstance(module, nn.Linear):
            module.reset_parameters()
