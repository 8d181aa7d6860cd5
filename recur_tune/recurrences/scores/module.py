"""Scores: weights that depend on distance alone, beside those of attention (RSA, *Encoding Recurrence into
Transformers*). A head's output is

    (1 - s) attention + s P V,   s = sigmoid(m),

where P is lower triangular: at a lag l > 0 it is the real part of p r^l, with

    regular   r = tanh(e)                      p = 1
    cosine    r = sigmoid(n) exp(i t)          p = 1
    sine      r = sigmoid(n) exp(i t)          p = -i

A dilated head has r^(l/d) where d divides l, and 0 elsewhere. PV is a linear recurrence over the values. So the
contribution of all earlier windows to the next d positions determines that to any later one: these d complex rows are
the state, and each further block of d positions has them times one more power of r.

Shape suffixes: B batch rows, T positions, S positions seen, L layers, N heads with such weights, G key-value heads,
D head size, C columns, R rows of P, X lags or columns of P, Y rows of the state (real parts, then imaginary ones).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from recur_tune.common.shape import Shape
from recur_tune.recurrences.seam import (
    CLOSED_GATE,
    GATE_SPEED,
    Heads,
    Recurrence,
    State,
    WindowPass,
    as_given,
    gate,
    load_kernels,
    single,
)

_KERNELS = "recur_tune.recurrences.scores.kernels"
_WIDEST_GATE = 3.0 / GATE_SPEED  # from scratch


class Scores(Recurrence):
    """Weights by distance for some heads of every layer.

    Its fields are plain arguments: this code also runs beside a saved model, without pydantic.
    """

    def __init__(self, shape: Shape, score_heads: int = 4, dilation: int = 1) -> None:
        super().__init__(shape)
        self.dilation = dilation
        # Spread evenly over the layer's heads, and so over key-value heads.
        self.heads = [number * shape.heads // score_heads for number in range(score_heads)]
        self.head_counts = [(score_heads + 2) // 3, (score_heads + 1) // 3, score_heads // 3]  # regular, cosine, sine
        regular, cyclical = self.head_counts[0], score_heads - self.head_counts[0]
        self.gate_logits = nn.Parameter(torch.empty(shape.layers, score_heads))
        self.fading = nn.Parameter(torch.empty(shape.layers, regular))
        self.damping = nn.Parameter(torch.empty(shape.layers, cyclical)) if cyclical else None
        self.angles = nn.Parameter(torch.empty(shape.layers, cyclical)) if cyclical else None
        self.reset(self)

    def reset(self, module: nn.Module) -> None:
        """The paper's initialisation, but with closed gates: at first a pretrained body is almost unchanged."""
        if module is self:
            nn.init.constant_(self.gate_logits, CLOSED_GATE)
            nn.init.uniform_(self.fading, 1.0, 2.0)
            with torch.no_grad():
                self.fading.mul_(torch.where(torch.rand_like(self.fading) < 0.5, -1.0, 1.0))
            if self.damping is not None and self.angles is not None:
                nn.init.uniform_(self.damping, 1.0, 2.0)
                nn.init.constant_(self.angles, math.pi / 4)

    def reset_from_scratch(self) -> None:
        """The paper's gates, from closed to open."""
        nn.init.uniform_(self.gate_logits, -_WIDEST_GATE, _WIDEST_GATE)

    def empty(self, batch_size: int) -> State:
        """Zeros."""
        sizes = (batch_size, self.shape.layers, len(self.heads), 2 * self.dilation, self.shape.head_size)
        return (self.gate_logits.new_zeros(sizes, dtype=torch.promote_types(self.gate_logits.dtype, torch.float32)),)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> ScoresWindowPass:
        """A document begins with zeros."""
        [past_BLNYD] = (None,) if state is None else state
        if past_BLNYD is not None and fresh_B is not None:
            past_BLNYD = torch.where(fresh_B[:, None, None, None, None], 0.0, past_BLNYD)
        return ScoresWindowPass(self, past_BLNYD, in_parts)

    def weights(
        self, first: int, rows: int, seen: int, dtype: torch.dtype, with_imaginary: bool = False
    ) -> torch.Tensor:
        """Weights of positions from `first` on over the state and the window's first `seen` positions, in `dtype`: real
        parts, [L, N, R, Y + S], and with `with_imaginary` imaginary parts below them."""
        device, steps = self.gate_logits.device, self.dilation
        # Over positions: weights depend on the lag alone, so one row over all lags serves all rows, shifted.
        lagged = self._by_lag(torch.arange(first - seen + 1, first + rows, device=device))
        # Over the state: its row for the position's place in a block, times a power for the block.
        at_R = torch.arange(first, first + rows, device=device)
        place_R = at_R % steps
        own_RY = place_R[:, None] == torch.arange(steps, device=device)
        blocks = self._powers((at_R - place_R) // self._steps(device), with_phase=False)
        cosine, sine = (torch.where(own_RY, one[..., None], 0.0).to(dtype) for one in blocks)
        parts = [(cosine, -sine), (sine, cosine)]
        made = [
            torch.cat([*before, _Toeplitz.apply(by_lag, seen, dtype)], dim=-1)
            for before, by_lag in zip(parts[: 1 + with_imaginary], lagged, strict=False)
        ]
        return torch.cat(made, dim=2) if with_imaginary else made[0]

    def by_lag(self, lag_X: torch.Tensor) -> torch.Tensor:
        """Weights of positions at these distances in either direction, [L, N, X], for a body that has them within a
        window alone."""
        return self._by_lag(lag_X)[0]

    def _by_lag(self, lag_X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Real and imaginary parts at these distances; 0 where a head looks at none, and at positions to come."""
        step_N1 = self._steps(lag_X.device)
        seen_NX = (lag_X > 0) & (lag_X % step_N1 == 0)
        real_LNX, imaginary_LNX = self._powers(lag_X.clamp_min(0) // step_N1, with_phase=True)
        return torch.where(seen_NX, real_LNX, 0.0), torch.where(seen_NX, imaginary_LNX, 0.0)

    def _steps(self, device: torch.device) -> torch.Tensor:
        """Positions between those that a head looks at, [N, 1]."""
        return 1 + (self.dilation - 1) * (torch.arange(len(self.heads), device=device)[:, None] % 2)

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The complex number r of every layer and head, [L, N]: radius and angle."""
        radius_LN, angle_LN = single(self.fading).tanh(), torch.zeros_like(single(self.fading))
        if self.damping is not None and self.angles is not None:
            radius_LN = torch.cat([radius_LN, single(self.damping).sigmoid()], dim=1)
            angle_LN = torch.cat([angle_LN, single(self.angles)], dim=1)
        return radius_LN, angle_LN

    def _powers(self, exponent_NX: torch.Tensor, with_phase: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Powers of every layer's and head's number, [L, N, X]: real and imaginary parts."""
        radius_LN, angle_LN = self.numbers()
        phase_LNX = angle_LN[..., None] * exponent_NX
        if with_phase:  # a sine is a cosine shifted by a quarter
            sines = torch.arange(len(self.heads), device=phase_LNX.device) >= len(self.heads) - self.head_counts[2]
            phase_LNX = phase_LNX - sines[:, None].to(phase_LNX.dtype) * (math.pi / 2)
        size_LNX = radius_LN[..., None] ** exponent_NX
        return size_LNX * phase_LNX.cos(), size_LNX * phase_LNX.sin()


class ScoresWindowPass(WindowPass):
    """Mixes weighted sums of the window's values and of the state into some heads' output."""

    whole_heads = True

    def __init__(self, scores: Scores, past_BLNYD: torch.Tensor | None, in_parts: bool) -> None:
        self._scores, self._past_BLNYD, self._in_parts = scores, past_BLNYD, in_parts
        self._values: dict[int, torch.Tensor] = {}  # of every layer, [N, S, B, D]
        self._whole: dict[int, torch.Tensor] = {}  # where it is read in parts: of all heads, [B, G, S, D]
        self._weights: tuple[torch.Tensor, ...] = ()  # of every layer, for the part that is read
        self._pasts: tuple[torch.Tensor, ...] = ()  # of every layer, [B, N, Y, D]
        self._numbers: tuple[torch.Tensor, torch.Tensor] | None = None  # of all heads, for kernels
        self._gates: tuple[torch.Tensor, ...] = gate(scores.gate_logits).unbind()  # of every layer, [N]

    @property
    def _fused(self) -> bool:
        return self.fused and self._past_BLNYD is not None and not self._in_parts

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Mix the recurrence's weighted sums into the output of some heads."""
        scores, new = self._scores, out_BTC.shape[1]
        v_BGTD, rows_NXBD = heads()[2], None
        if self._fused and self._past_BLNYD is not None:
            kernels = load_kernels(_KERNELS)
            if not layer:
                self._pasts = self._past_BLNYD.unbind(1)
            rows_NXBD, v_NSBD = kernels.rows_of_heads(v_BGTD, self._pasts[layer], scores.shape.heads)
        else:
            v_NSBD = self._of_heads(v_BGTD)
        seen = v_NSBD.shape[1]
        if self._in_parts:
            self._whole[layer] = v_BGTD
        else:
            self._values[layer] = v_NSBD
        if not layer:
            self._gates = self._gates or gate(scores.gate_logits).unbind()
            self._weights = self._made(rows_NXBD is not None, seen - new, new, seen, v_NSBD.dtype, False).unbind()
        if rows_NXBD is not None:
            taken_NTBD = _product(self._weights[layer], rows_NXBD)
            return kernels.mix_heads(out_BTC, taken_NTBD, self._gates[layer])
        past_NYBD = self._past(v_NSBD)[layer]
        taken_NTBD = _product(self._weights[layer], torch.cat([past_NYBD, v_NSBD], dim=1))
        mixed = list(out_BTC.unflatten(-1, (scores.shape.heads, -1)).unbind(2))
        for head, taken_TBD, share in zip(scores.heads, taken_NTBD, self._gates[layer], strict=True):
            mixed[head] = torch.lerp(single(mixed[head]), single(taken_TBD).transpose(0, 1), share).to(out_BTC.dtype)
        return torch.cat(mixed, dim=-1)

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The contribution of the text so far to the next window's first positions."""
        values = self._values or {layer: self._of_heads(v_BGSD) for layer, v_BGSD in self._whole.items()}
        some_NSBD = values[0]
        stride = max(0, some_NSBD.shape[1] - overlap)
        in_order = [values[layer][:, :stride] for layer in range(len(values))]
        with as_given(some_NSBD):
            v_LNSBD = single(torch.stack(in_order))
            rows_LNXBD = torch.cat([self._past(v_LNSBD[0]), v_LNSBD], dim=2)
            steps, count = self._scores.dilation, rows_LNXBD.shape[2]
            weight_LNYX = self._made(self._fused, stride, steps, stride, v_LNSBD.dtype, True)[..., :count]
            return (_product(weight_LNYX, rows_LNXBD).permute(3, 0, 1, 2, 4),)

    def _made(
        self, fused: bool, first: int, rows: int, seen: int, dtype: torch.dtype, with_imaginary: bool
    ) -> torch.Tensor:
        """Weights; those by kernels may have further columns of zeros."""
        scores = self._scores
        if not fused:
            return scores.weights(first, rows, seen, dtype, with_imaginary)
        if self._numbers is None:
            self._numbers = scores.numbers()
        of_heads = *self._numbers, scores.head_counts[2], scores.dilation
        return load_kernels(_KERNELS).score_weights(*of_heads, first, rows, seen, dtype, with_imaginary)

    def rest(self) -> None:
        """Lets go of weights and gates."""
        self._weights, self._gates = (), ()

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders the values and the state."""
        self._whole = {layer: v_BGSD[index_B] for layer, v_BGSD in self._whole.items()}
        self._past_BLNYD = None if self._past_BLNYD is None else self._past_BLNYD[index_B]

    def _of_heads(self, v_BGSD: torch.Tensor) -> torch.Tensor:
        """Values of the heads with such weights, [N, S, B, D]."""
        v_GSBD = v_BGSD.permute(1, 2, 0, 3)
        group = self._scores.shape.heads // len(v_GSBD)
        return torch.stack([v_GSBD[head // group] for head in self._scores.heads])

    def _past(self, v_NSBD: torch.Tensor) -> torch.Tensor:
        """The state's rows, [L, N, Y, B, D]; without a state, zeros."""
        if self._past_BLNYD is not None:
            return self._past_BLNYD.permute(1, 2, 3, 0, 4)
        heads, _, batch_size, size = v_NSBD.shape
        return v_NSBD.new_zeros(self._scores.shape.layers, heads, 2 * self._scores.dilation, batch_size, size)


class _Toeplitz(torch.autograd.Function):
    """A Toeplitz matrix [..., R, S] from a row over lags. The backward pass sums over the diagonals, which become
    columns when the padded matrix is viewed with rows one number shorter."""

    @staticmethod
    def forward(ctx: Any, row_X: torch.Tensor, seen: int, dtype: torch.dtype) -> torch.Tensor:
        ctx.dtype = row_X.dtype
        return row_X.to(dtype).unfold(-1, seen, 1).flip(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_matrix_RS: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        rows, seen = grad_matrix_RS.shape[-2:]
        lags = rows + seen - 1
        by_lag = F.pad(grad_matrix_RS.flip(-1), (0, rows)).flatten(-2)[..., : rows * lags].unflatten(-1, (rows, lags))
        return by_lag.sum(-2, dtype=ctx.dtype), None, None


def _product(weight_RX: torch.Tensor, rows_XBD: torch.Tensor) -> torch.Tensor:
    """Weighted sums of rows, in one product for all batch rows."""
    sizes = rows_XBD.shape[-2:]
    return (weight_RX @ rows_XBD.flatten(-2).to(weight_RX.dtype)).unflatten(-1, sizes)
