"""The gated delta rule for many positions at once (Gated DeltaNet's UT transform), and its backward pass.

One position after the other:

    S ← α S + β k (v − α Sᵀ k)ᵀ

Within a chunk the corrections u = β (v − α Sᵀ k) depend on each other as a triangular system: with γ the product of α
from the chunk's beginning, and S the matrix there,

    (I + A) U = β (V − γ K S),    A[i, j] = β_i (γ_i / γ_j) k_i·k_j for j < i
    S ← γ_end S + (γ_end / γ K)ᵀ U

So a chunk takes matrix products and one inverse, and all chunks' inverses are made together. Keys and values have no
gradient, so the backward pass has as many products as the forward one.

Shape suffixes: X matrices, N positions, C chunks, L positions of a chunk, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def written(
    state_XDD: torch.Tensor | None,
    k_XND: torch.Tensor,
    v_XND: torch.Tensor,
    beta_XN: torch.Tensor,
    log_alpha_XN: torch.Tensor,
    chunk: int,
) -> torch.Tensor:
    """The matrix after all positions; None: it was zero. Where β and log α are 0, nothing is written."""
    padding = -k_XND.shape[1] % chunk
    if padding:
        k_XND, v_XND = (F.pad(one, (0, 0, 0, padding)) for one in (k_XND, v_XND))
        beta_XN, log_alpha_XN = (F.pad(one, (0, padding)) for one in (beta_XN, log_alpha_XN))
    k_XCLD, v_XCLD, beta_XCL, log_alpha_XCL = (
        one.unflatten(1, (-1, chunk)) for one in (k_XND, v_XND, beta_XN, log_alpha_XN)
    )
    return _Written.apply(state_XDD, k_XCLD, v_XCLD, beta_XCL, log_alpha_XCL.cumsum(-1))


class _Written(torch.autograd.Function):
    """From the logarithm of γ, which autograd differentiates on."""

    @staticmethod
    def forward(
        ctx: Any,
        state_XDD: torch.Tensor | None,
        k_XCLD: torch.Tensor,
        v_XCLD: torch.Tensor,
        beta_XCL: torch.Tensor,
        log_gamma_XCL: torch.Tensor,
    ) -> torch.Tensor:
        chunks, chunk = k_XCLD.shape[1:3]
        later_LL = torch.ones(chunk, chunk, dtype=torch.bool, device=k_XCLD.device).triu()
        faded_XCLL = (log_gamma_XCL[..., None] - log_gamma_XCL[..., None, :]).masked_fill_(later_LL, -torch.inf).exp_()
        shared_XCLL = faded_XCLL.mul_(k_XCLD @ k_XCLD.mT)
        identity = torch.eye(chunk, dtype=k_XCLD.dtype, device=k_XCLD.device)
        system_XCLL = beta_XCL[..., None] * shared_XCLL  # the diagonal of ones is understood
        inverse_XCLL = torch.linalg.solve_triangular(
            system_XCLL, identity.expand_as(system_XCLL), upper=False, unitriangular=True
        )
        states, errors, corrections = [state_XDD], [], []
        for at in range(chunks):
            error_XLD, before_XDD = v_XCLD[:, at], states[-1]
            end_X1, log_gamma_XL = log_gamma_XCL[:, at, -1:], log_gamma_XCL[:, at]
            if before_XDD is not None:
                error_XLD = torch.addcmul(
                    error_XLD, log_gamma_XL.exp()[..., None], k_XCLD[:, at] @ before_XDD, value=-1
                )
            correction_XLD = inverse_XCLL[:, at] @ (beta_XCL[:, at, :, None] * error_XLD)
            fading_XL1 = (end_X1 - log_gamma_XL).exp()[..., None]
            after_XDD = k_XCLD[:, at].mT @ (fading_XL1 * correction_XLD)
            if before_XDD is not None:
                after_XDD = torch.addcmul(after_XDD, end_X1.exp()[..., None], before_XDD)
            states.append(after_XDD)
            errors.append(error_XLD)
            corrections.append(correction_XLD)
        left_XDD = states.pop()
        assert left_XDD is not None
        ctx.chunks = chunks
        ctx.save_for_backward(
            k_XCLD, v_XCLD, beta_XCL, log_gamma_XCL, shared_XCLL, inverse_XCLL, *states, *errors, *corrections
        )
        return left_XDD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_XDD: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        k_XCLD, v_XCLD, beta_XCL, log_gamma_XCL, shared_XCLL, inverse_XCLL, *others = ctx.saved_tensors
        count = ctx.chunks
        states, errors, corrections = others[:count], others[count : 2 * count], others[2 * count :]
        grad_log_gamma_XCL, grad_beta_XCL = torch.zeros_like(log_gamma_XCL), torch.empty_like(beta_XCL)
        solved: list[torch.Tensor] = []  # gradients with respect to the system's right side, the last chunk's first
        for at in reversed(range(count)):
            k_XLD, before_XDD, log_gamma_XL = k_XCLD[:, at], states[at], log_gamma_XCL[:, at]
            end_X1 = log_gamma_XL[:, -1:]
            grad_u_XLD = (end_X1 - log_gamma_XL).exp()[..., None] * (k_XLD @ grad_XDD)
            faded_XL = (grad_u_XLD * corrections[at]).sum(-1)
            grad_right_XLD = inverse_XCLL[:, at].mT @ grad_u_XLD
            grad_beta_XCL[:, at] = (grad_right_XLD * errors[at]).sum(-1)
            grad_log_gamma_XCL[:, at] -= faded_XL
            grad_log_gamma_XCL[:, at, -1] += faded_XL.sum(-1)
            solved.append(grad_right_XLD)
            if before_XDD is None:
                grad_before_XDD = None
                break  # the first chunk
            grad_error_XLD = beta_XCL[:, at, :, None] * grad_right_XLD
            grad_log_gamma_XCL[:, at] -= (grad_error_XLD * (v_XCLD[:, at] - errors[at])).sum(-1)
            kept_XDD = end_X1.exp()[..., None] * grad_XDD
            grad_log_gamma_XCL[:, at, -1] += (kept_XDD * before_XDD).sum((1, 2))
            grad_before_XDD = kept_XDD - k_XLD.mT @ (log_gamma_XL.exp()[..., None] * grad_error_XLD)
            grad_XDD = grad_before_XDD
        grad_right_XCLD = torch.stack(solved[::-1], dim=1)
        grad_system_XCLL = -(grad_right_XCLD @ torch.stack(corrections, dim=1).mT) * shared_XCLL
        grad_beta_XCL += grad_system_XCLL.sum(-1)
        grad_system_XCLL *= beta_XCL[..., None]
        grad_log_gamma_XCL += grad_system_XCLL.sum(-1) - grad_system_XCLL.sum(-2)
        return grad_before_XDD, None, None, grad_beta_XCL, grad_log_gamma_XCL
