"""Patch decoder: a small causal decoder over patches of a series, one column at a time.

A patch is a few consecutive time steps, as in PatchTST; the blocks are Llama's. From every patch the whole horizon is
forecast at once. A patch is normalised by mean and standard deviation of the window up to its end, and the forecast
from there has them again: at a window's end that is PatchTST's instance norm, and no earlier patch sees a later value.

Shape suffixes: as in `series.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel

from recur_tune.models.bodies.llama import body_of
from recur_tune.models.decoder import WindowedDecoder
from recur_tune.models.series import SeriesConfig, SeriesModel
from recur_tune.models.windowed import WindowOutput
from recur_tune.ops.autograd import BlockOps
from recur_tune.ops.body import Body

_LEAST_VARIANCE = 1e-5  # of a flat patch; RevIN's


class PatchDecoderConfig(SeriesConfig, LlamaConfig):
    """Llama's configuration, and what is read and forecast."""

    model_type = "recurrent_patches"


class PatchDecoder(SeriesModel, WindowedDecoder, LlamaPreTrainedModel):
    """A decoder over patches, and the recurrence that connects its windows."""

    config_class = PatchDecoderConfig
    dropout_fields = ("attention_dropout", "hidden_dropout")
    opened_by, scored_by = SeriesModel.opened_by, SeriesModel.scored_by

    def __init__(self, config: PatchDecoderConfig) -> None:
        super().__init__(config)
        self.model = LlamaModel(config)
        self.model.embed_tokens = nn.Linear(config.patch, config.hidden_size)
        self.outlook = nn.Linear(config.hidden_size, config.horizon)
        self.dropouts = nn.ModuleList(nn.Dropout(config.hidden_dropout) for _ in range(2))
        self.add_recurrence()
        self.post_init()

    def find_body(self) -> Body:
        """Llama's modules in their places, with dropout behind attention and behind the MLP."""
        behind_attention, behind_mlp = self.dropouts
        return body_of(self.model, (behind_attention, behind_mlp))

    def read(self, values_BS: torch.Tensor, *given: Any, **named: Any) -> WindowOutput:  # type: ignore[override]
        """Run one window of values; the other arguments are a decoder's."""
        return super().read(values_BS.unflatten(-1, (-1, self.config.patch)), *given, **named)

    def embed(self, patches_BTP: torch.Tensor, position_BT: torch.Tensor, ops: BlockOps) -> torch.Tensor:
        """Normalised patches, embedded."""
        patches_BTP = patches_BTP.to(self.outlook.weight.dtype)
        mean_BT1, scale_BT1 = _so_far(patches_BTP)
        return self.model.embed_tokens((patches_BTP - mean_BT1) / scale_BT1).to(self.body.stream_dtype)

    def forecast(self, top_BTK: torch.Tensor, values_BS: torch.Tensor) -> torch.Tensor:
        """The horizon from every patch that is given."""
        dtype, last = self.outlook.weight.dtype, top_BTK.shape[1]
        mean_BT1, scale_BT1 = _so_far(values_BS.unflatten(-1, (-1, self.config.patch)).to(dtype))
        return self.outlook(top_BTK.to(dtype)) * scale_BT1[:, -last:] + mean_BT1[:, -last:]

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The one linear layer."""
        return (self.outlook,)

    def get_output_embeddings(self) -> None:  # type: ignore[override]
        """It has no vocabulary."""


def _so_far(patches_BTP: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of a window up to the end of every patch, [B, T, 1]."""
    patches_T = torch.arange(1, patches_BTP.shape[1] + 1, device=patches_BTP.device)
    mean_BT = patches_BTP.mean(-1).cumsum(1) / patches_T
    square_BT = patches_BTP.square().mean(-1).cumsum(1) / patches_T
    variance_BT = (square_BT - mean_BT.square()).clamp_min(0.0)
    return mean_BT[..., None], (variance_BT + _LEAST_VARIANCE).sqrt()[..., None]
