"""TestTimeTraining: what a window teaches some MLPs is added to their second matrix in later windows (In-Place TTT).

A site is a layer with such an MLP. Of a window's positions it has the units h, which the second matrix W takes, and x,
the residual stream where the MLP begins, divided by its root mean square. Targets are a depthwise convolution of x, two
positions back and two ahead, times a matrix P. At the window's end

    ΔW ← a ΔW + η mean((conv(x) P)ᵀ h / |h|)

and the next window's MLP has W + ΔW. This is one step of gradient descent on minus the product of targets and outputs,
so nothing is differentiated twice. The convolution starts at zero, so an untrained state changes nothing. Units are
L2-normalised and their products are averaged: a pretrained model's units are in the thousands at some positions, and a
sum of these is an MLP that has forgotten its own weights.

Shape suffixes: B batch rows, T positions, S sites, K hidden size, F units, C taps of the convolution.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.ops.matmul import product_dtype
from recur_tune.recurrences.seam import GATE_SPEED, Recurrence, State, WindowPass, every_nth, gate

_TAPS = 5
_RATE = 0.3
_KEEPS = 2.2 / GATE_SPEED  # at first a is 0.9
_SMALL = 0.02  # standard deviation of P's diagonal
_LEAST = 1e-6  # added to a mean square
_SHORTEST = 1e-12  # length that is divided by


class TestTimeTraining(Recurrence):
    """A sum of updates for the MLP of every n-th layer.

    Its fields are plain arguments: this code also runs beside a saved model, without pydantic.
    """

    __test__ = False  # pytest would take the name for a test's

    def __init__(self, shape: Shape, ttt_every: int = 6) -> None:
        super().__init__(shape)
        self.sites = every_nth(ttt_every, shape)
        sites, hidden = len(self.sites), shape.hidden
        self.taps = nn.Parameter(torch.empty(sites, _TAPS, hidden))
        self.targets = nn.Parameter(torch.empty(sites, hidden, hidden))
        self.decay_logits = nn.Parameter(torch.empty(sites))
        self.reset(self)

    def reset(self, module: nn.Module) -> None:
        """Initialise this module or one inside it; Hugging Face calls it for each."""
        if module is self:
            nn.init.zeros_(self.taps)
            nn.init.constant_(self.decay_logits, _KEEPS)
            with torch.no_grad():
                self.targets.zero_().diagonal(dim1=1, dim2=2).normal_(std=_SMALL)

    def empty(self, batch_size: int) -> State:
        """Zeros: nothing was learned."""
        return (self.taps.new_zeros(batch_size, len(self.sites), self.shape.hidden, self.shape.inner),)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> TestTimeTrainingPass:
        """Where a document begins, nothing was learned."""
        if state is None:
            return TestTimeTrainingPass(self, None)
        [learned_BSKF] = state
        if fresh_B is not None:
            learned_BSKF = torch.where(fresh_B[:, None, None, None], 0.0, learned_BSKF)
        return TestTimeTrainingPass(self, learned_BSKF)

    def target(self, site: int, x_BTK: torch.Tensor, stride: int) -> torch.Tensor:
        """Targets of the window's first positions; beyond the window the convolution sees zeros."""
        reach = _TAPS // 2
        around_BTK = F.pad(x_BTK, (0, 0, reach, reach))
        taps = self.taps[site].to(x_BTK.dtype)
        first_K, *others = taps.unbind()
        mixed_BTK = first_K * around_BTK[:, :stride]
        for at, tap_K in enumerate(others, start=1):
            mixed_BTK = torch.addcmul(mixed_BTK, tap_K, around_BTK[:, at : at + stride])
        return mixed_BTK @ self.targets[site]


class TestTimeTrainingPass(WindowPass):
    """Adds what was learned to MLPs' outputs, and collects what the window teaches."""

    __test__ = False

    def __init__(self, learning: TestTimeTraining, learned_BSKF: torch.Tensor | None) -> None:
        self._learning, self._learned_BSKF = learning, learned_BSKF
        self.unit_layers = learning.sites
        self._by_site: tuple[torch.Tensor, ...] = ()  # what was learned, [B, K, F] each
        self._parts: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {layer: [] for layer in learning.sites}

    def units(self, layer: int, x_BTK: torch.Tensor, unit_BTF: torch.Tensor) -> torch.Tensor | None:
        """The units' product with what was learned."""
        x_BTK = F.rms_norm(x_BTK, x_BTK.shape[-1:], eps=_LEAST).to(unit_BTF.dtype)
        self._parts[layer].append((x_BTK, unit_BTF))
        if self._learned_BSKF is None:
            return None
        self._by_site = self._by_site or self._learned_BSKF.unbind(1)  # views, whose gradients are stacked at once
        return unit_BTF @ self._by_site[self._learning.sites.index(layer)].to(unit_BTF.dtype).mT

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """Learn from the positions that the next window does not read again."""
        self.rest()
        learning, made = self._learning, []
        for site, [(x_BTK, unit_BTF)] in enumerate(self._parts.values()):
            stride = max(0, x_BTK.shape[1] - overlap)
            unit_BTF = unit_BTF[:, :stride]
            length_BT1 = torch.linalg.vector_norm(unit_BTF, dim=-1, keepdim=True, dtype=learning.taps.dtype)
            # Targets are divided in place of units, which are more numbers.
            target_BTK = learning.target(site, x_BTK, stride) / (max(1, stride) * length_BT1.clamp(min=_SHORTEST))
            made.append(target_BTK.to(unit_BTF.dtype).mT @ unit_BTF)
        learned_BSKF = _RATE * torch.stack(made, dim=1)
        if self._learned_BSKF is not None:
            keeps_S11 = gate(learning.decay_logits)[:, None, None]
            learned_BSKF = learned_BSKF + keeps_S11 * self._learned_BSKF
        return (learned_BSKF.to(product_dtype(learning.taps)),)

    def rest(self) -> None:
        """Joins the parts of the window."""
        self._by_site = ()
        for layer, parts in self._parts.items():
            if len(parts) > 1:
                x_parts, unit_parts = zip(*parts, strict=True)
                self._parts[layer] = [(torch.cat(x_parts, dim=1), torch.cat(unit_parts, dim=1))]

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders what was learned and what the window teaches."""
        self.rest()
        if self._learned_BSKF is not None:
            self._learned_BSKF = self._learned_BSKF[index_B]
        for layer, parts in self._parts.items():
            self._parts[layer] = [(x_BTK[index_B], unit_BTF[index_B]) for x_BTK, unit_BTF in parts]
