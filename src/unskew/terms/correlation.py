"""Correlation matrices of a batch's features, padding left out: standardised features, log-determinants."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unskew.base.torch_private import is_batched

LARGEST_JITTER = 1e-2


def standardised(features: Tensor, mask: Tensor | None, var_eps: float) -> tuple[Tensor, Tensor]:
    """X [B, d]: columns of mean 0 divided by sqrt(unbiased variance + var_eps); and the number of real rows minus 1.

    Rows of padding are 0. So are constant columns, with gradient exactly 0: without it their rounding would be
    divided by sqrt(var_eps).
    """
    rows = torch.full((), len(features), device=features.device) if mask is None else mask.sum()
    count = rows.to(features.dtype)
    shown = features if mask is None else torch.where(mask.unsqueeze(1), features, 0.0)
    centred = features - shown.sum(0) / count.clamp(min=1)
    differs = features.detach() != features.detach()[:1]  # the first row is real: padding comes last
    if mask is not None:
        centred, differs = torch.where(mask.unsqueeze(1), centred, 0.0), differs & mask.unsqueeze(1)
    centred = torch.where(differs.any(0), centred, 0.0)
    degrees = count - 1
    variance = centred.square().sum(0) / degrees.clamp(min=1)
    return centred * torch.rsqrt(variance + var_eps), degrees


def minus_log_det(x: Tensor, degrees: Tensor, mask: Tensor | None, jitter: float) -> tuple[Tensor, Tensor]:
    """-log det(K + jitter I) of K = X^T X / degrees, and whether it could be computed; else it is 0.

    Of X^T X and X X^T the smaller one is used: the others of K + jitter I's d eigenvalues are jitter. So is the
    eigenvalue of each padded row, hence no correction for these.
    """
    batch, size = x.shape
    wide = batch < size
    small = (x @ x.T if wide else x.T @ x) / degrees.clamp(min=1)
    # columns of mean 0 make the vector of ones an eigenvector of X X^T with eigenvalue 0; with 1 in its place the
    # matrix is well conditioned in float32, and the gradient the same: centring takes that direction out again
    lifted = small.detach() + _projection(x, mask) if wide else small.detach()
    inverse, log_det, used, done = _factorised(lifted, jitter)
    if wide:
        log_det = log_det - used.log1p() + (size - batch + 1) * used.log()
    # d log det(M) = <M^-1, dM>; the difference is 0 and carries the gradient
    surrogate = (inverse * (small - small.detach())).sum()
    return torch.where(done, -log_det, 0.0) - surrogate, done


def _projection(x: Tensor, mask: Tensor | None) -> Tensor:
    """11^T / n over the n real rows."""
    ones = torch.ones_like(x[:, 0]) if mask is None else mask.to(x.dtype)
    return torch.outer(ones, ones) / ones.sum().clamp(min=1)


def _factorised(gram: Tensor, jitter: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inverse and log-determinant of gram + jitter I, the jitter that was needed, and whether any was enough.

    First as it comes, then in float64, then with ten times the jitter, up to 1e-2 (sheet 3.2).
    """
    stacked = is_batched(gram)
    inverse, log_det = torch.zeros_like(gram), gram.new_zeros(())
    used, done = torch.full_like(log_det, jitter), torch.zeros_like(log_det, dtype=torch.bool)
    for dtype, trial in _attempts(gram.dtype, jitter):
        moved = gram.to(dtype) + trial * torch.eye(len(gram), dtype=dtype, device=gram.device)
        factor, info = torch.linalg.cholesky_ex(moved)
        found = 2 * factor.diagonal().log().sum()
        good = (info == 0) & found.isfinite() & ~done
        # where it failed the factor is rubbish, and so would be its inverse
        safe = torch.where(good, factor, torch.eye(len(gram), dtype=dtype, device=gram.device))
        inverse = torch.where(good, torch.cholesky_inverse(safe).to(gram.dtype), inverse)
        log_det, used = torch.where(good, found.to(gram.dtype), log_det), torch.where(good, trial, used)
        done = done | good
        if not stacked and bool(done):
            break
    return inverse, log_det, used, done


def _attempts(dtype: torch.dtype, jitter: float) -> list[tuple[torch.dtype, float]]:
    double = [jitter * 10**power for power in range(1 + max(0, round(math.log10(LARGEST_JITTER / jitter))))]
    first = [] if dtype == torch.float64 else [(dtype, jitter)]
    return [*first, *((torch.float64, trial) for trial in double)]
