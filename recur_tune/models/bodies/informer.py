"""Informer: an encoder with ProbSparse attention and distilling, and a decoder that makes the whole horizon at once, of
all columns together (*Informer: Beyond Efficient Transformer for Long Sequence Time-Series Forecasting*).

Layers, distilling and cross-attention are transformers' own. Its ProbSparse attention is replaced: it draws as many
keys as there are, the same for all queries, also in evaluation. Here every query has its own sample, as in
Informer2020, and in evaluation the sample is fixed, so that a score can be repeated.

RSA (`scores`) is within a window here: an encoder reads in both directions, so no state goes on to the next. P has a
row for every query, and ProbSparse keeps some of the queries: the rows of P are theirs, by their positions. Queries
that are left out have the mean of the values, or in the decoder their sum so far, as without RSA. The encoder's P is
that of the distance in both directions, the decoder's is lower triangular; cross-attention has none.

Rows of a batch: a chain's columns, then its calendar, over the window and the horizon behind it, where values are zero.

Shape suffixes: B chains, R rows of a batch, C columns, F calendar features, S time steps of a window, T positions,
U kept queries or sampled keys, H heads, D head size, K hidden size, X lags.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers import InformerConfig, PreTrainedModel
from transformers.models.informer.modeling_informer import (
    InformerConvLayer,
    InformerDecoderLayer,
    InformerEncoderLayer,
    InformerProbSparseAttention,
)

from recur_tune.common.shape import CALENDAR, kept_positions
from recur_tune.models.series import SeriesConfig, SeriesModel
from recur_tune.models.windowed import WindowOutput
from recur_tune.ops.body import Body
from recur_tune.recurrences.seam import gate


class ForecastingInformerConfig(SeriesConfig, InformerConfig):
    """transformers' configuration, and what is read and forecast.

    Attributes:
        label: Last time steps of the window that the decoder reads before the horizon.
    """

    model_type = "recurrent_informer"
    label: int = 1


class ForecastingInformer(SeriesModel, PreTrainedModel):
    """Encoder, decoder and the projection to all columns."""

    config_class = ForecastingInformerConfig
    dropout_fields = ("dropout", "attention_dropout", "activation_dropout")

    def __init__(self, config: ForecastingInformerConfig) -> None:
        super().__init__(config)
        self.read_window, self.read_label = _Embedding(config), _Embedding(config)
        self.encoder = nn.ModuleList(InformerEncoderLayer(config) for _ in range(config.encoder_layers))
        self.distilling = nn.ModuleList(InformerConvLayer(config.d_model) for _ in range(config.encoder_layers - 1))
        self.decoder = nn.ModuleList(InformerDecoderLayer(config, at) for at in range(config.decoder_layers))
        for layers in (self.encoder, self.decoder):
            for layer in layers:
                layer.self_attn = _ProbSparse(config, is_decoder=layers is self.decoder)
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        self.projection = nn.Linear(config.d_model, config.columns)
        self.add_recurrence()
        self.post_init()

    @property
    def carries_state(self) -> bool:
        """No: RSA is within a window."""
        return False

    def find_body(self) -> Body:
        """None of its modules is in a decoder's place."""
        return Body(None, None, None, None, (), None)  # type: ignore[arg-type]

    def blank(self, windows: int, chains: int, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Zeros: columns and calendar of every chain."""
        _, targets = super().blank(windows, chains, window)
        rows, steps = chains * (self.config.columns + CALENDAR), window + self.config.horizon
        return torch.zeros((windows, rows, steps)), targets

    def positions(self, window: int) -> int:
        """Those of the horizon."""
        return self.config.horizon

    def read(self, values_RS: torch.Tensor, *given: Any, **named: Any) -> WindowOutput:
        """The decoder's last layer over the horizon, [B, T, K]."""
        config, dtype = self.config, self.projection.weight.dtype
        rows_BST = values_RS.to(dtype).unflatten(0, (-1, config.columns + CALENDAR)).transpose(1, 2)
        value_BTC, mark_BTF = rows_BST.split([config.columns, CALENDAR], dim=-1)
        window = values_RS.shape[1] - config.horizon
        weights = self._weights_by_lag(values_RS.shape[1])
        x_BTK = self.read_window(value_BTC[:, :window], mark_BTF[:, :window])
        for layer, added in zip((*self.encoder, *self.decoder), weights, strict=True):
            layer.self_attn.added = added
        for at, layer in enumerate(self.encoder):
            x_BTK = layer(x_BTK, None)
            if at < len(self.distilling):
                x_BTK = self.distilling[at](x_BTK)
        memory_BTK, begin = self.encoder_norm(x_BTK), window - config.label
        y_BTK = self.read_label(value_BTC[:, begin:], mark_BTF[:, begin:])
        for layer in self.decoder:
            y_BTK = layer(y_BTK, encoder_hidden_states=memory_BTK)
        return WindowOutput(self.decoder_norm(y_BTK)[:, -config.horizon :], None)

    def forecast(self, top_BTK: torch.Tensor, values_RS: torch.Tensor) -> torch.Tensor:
        """All columns, [B C, 1, horizon]."""
        made_BTC = self.projection(top_BTK.to(self.projection.weight.dtype))
        return made_BTC.transpose(1, 2).flatten(0, 1)[:, None]

    def forecast_at_end(self, top_BTK: torch.Tensor, values_RS: torch.Tensor) -> torch.Tensor:
        """The same, [B C, horizon]."""
        return self.forecast(top_BTK, values_RS)[:, 0]

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The projection."""
        return (self.projection,)

    def _weights_by_lag(self, lags: int) -> list[tuple[torch.Tensor, torch.Tensor, list[int]] | None]:
        """RSA's weights by distance, gates and heads, for every layer; None without it."""
        layers = len(self.encoder) + len(self.decoder)
        if self.recurrence is None:
            return [None] * layers
        scores: Any = self.recurrence
        by_lag_LNX = scores.by_lag(torch.arange(lags, device=self.projection.weight.device))
        return [(by_lag_LNX[at], gate(scores.gate_logits[at]), scores.heads) for at in range(layers)]

    def _init_weights(self, module: nn.Module) -> None:
        """As torch initialises them, which is Informer2020's way but for two convolutions."""
        if self.recurrence is not None and module is self.recurrence:
            self.recurrence.reset(module)
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.LayerNorm | nn.BatchNorm1d):
            module.reset_parameters()


class _Embedding(nn.Module):
    """Values by a convolution, the calendar by a matrix, and sinusoidal positions."""

    def __init__(self, config: ForecastingInformerConfig) -> None:
        super().__init__()
        self.values = nn.Conv1d(config.columns, config.d_model, 3, padding=1, padding_mode="circular")
        self.calendar = nn.Linear(CALENDAR, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, value_BTC: torch.Tensor, mark_BTF: torch.Tensor) -> torch.Tensor:
        x_BTK = self.values(value_BTC.transpose(1, 2)).transpose(1, 2) + self.calendar(mark_BTF)
        return self.dropout(x_BTK + _sinusoids(x_BTK))


def _sinusoids(x_BTK: torch.Tensor) -> torch.Tensor:
    """What positions add."""
    _, positions, size = x_BTK.shape
    place_T1 = torch.arange(positions, device=x_BTK.device)[:, None]
    speed_K = torch.exp(torch.arange(0, size, 2, device=x_BTK.device) * (-math.log(10_000.0) / size))
    angle_TK = place_T1 * speed_K
    return torch.stack([angle_TK.sin(), angle_TK.cos()], dim=-1).flatten(1).to(x_BTK.dtype)


class _ProbSparse(InformerProbSparseAttention):
    """ProbSparse self-attention: only the queries whose scores are least even get their own attention.

    Attributes:
        added: RSA's weights by lag [N, X], gates [N] and heads, for the next call; None: no RSA.
    """

    added: tuple[torch.Tensor, torch.Tensor, list[int]] | None = None

    def __init__(self, config: ForecastingInformerConfig, is_decoder: bool) -> None:
        heads = config.decoder_attention_heads if is_decoder else config.encoder_attention_heads
        super().__init__(config.d_model, heads, config.attention_dropout, is_decoder, config.sampling_factor)

    def forward(self, hidden_states: torch.Tensor, *given: Any, **named: Any) -> tuple[torch.Tensor, None]:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q_BHTD, k_BHTD, v_BHTD = (
            one(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for one in projections
        )
        kept_BHU = self._kept_queries(q_BHTD, k_BHTD)
        index_BHUD = kept_BHU[..., None].expand(-1, -1, -1, self.head_dim)
        score_BHUT = q_BHTD.gather(2, index_BHUD) @ k_BHTD.transpose(-1, -2) * self.scaling
        later_BHUT = torch.arange(k_BHTD.shape[2], device=kept_BHU.device) > kept_BHU[..., None]
        if self.is_decoder:
            score_BHUT = score_BHUT.masked_fill(later_BHUT, float("-inf"))
        weight_BHUT = nn.functional.dropout(score_BHUT.softmax(-1), self.dropout, self.training)
        weight_BHUT = self._with_added(weight_BHUT, kept_BHU, later_BHUT)
        rest_BHTD = v_BHTD.cumsum(2) if self.is_decoder else v_BHTD.mean(2, keepdim=True).expand_as(v_BHTD)
        out_BHTD = rest_BHTD.scatter(2, index_BHUD, (weight_BHUT @ v_BHTD).to(rest_BHTD.dtype))
        return self.out_proj(out_BHTD.transpose(1, 2).flatten(2)), None

    @torch.no_grad()
    def _kept_queries(self, q_BHTD: torch.Tensor, k_BHTD: torch.Tensor) -> torch.Tensor:
        """The queries with the largest difference between the maximum and the mean of sampled scores."""
        positions = q_BHTD.shape[2]
        count = kept_positions(positions, self.factor)
        if self.training:
            sample_TU = torch.randint(positions, (positions, count), device=q_BHTD.device)
        else:
            first_T1 = torch.arange(positions, device=q_BHTD.device)[:, None]
            sample_TU = (first_T1 + torch.arange(count, device=q_BHTD.device) * positions // count) % positions
        score_BHTU = (k_BHTD[:, :, sample_TU] @ q_BHTD[..., None])[..., 0]
        return (score_BHTU.amax(-1) - score_BHTU.sum(-1) / positions).topk(count, sorted=False).indices

    def _with_added(self, weight_BHUT: torch.Tensor, kept_BHU: torch.Tensor, later_BHUT: torch.Tensor) -> torch.Tensor:
        """RSA: (1 - s) attention + s P in some heads, P's rows being those of the kept queries."""
        if self.added is None:
            return weight_BHUT
        by_lag_NX, gate_N, heads = self.added
        lag_BHUT = (kept_BHU[..., None] - torch.arange(weight_BHUT.shape[-1], device=kept_BHU.device)).abs()
        mixed = list(weight_BHUT.unbind(1))
        for number, head in enumerate(heads):
            added_BUT = by_lag_NX[number][lag_BHUT[:, head]]
            if self.is_decoder:
                added_BUT = added_BUT.masked_fill(later_BHUT[:, head], 0.0)
            mixed[head] = torch.lerp(mixed[head], added_BUT.to(mixed[head].dtype), gate_N[number].to(weight_BHUT.dtype))
        return torch.stack(mixed, dim=1)
