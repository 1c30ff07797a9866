"""LDDecorr, the log-determinant decorrelation of FedBlade."""

from __future__ import annotations

import functools
import logging
import math

import torch
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.torch_private import is_batched
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms
from unskew.terms.correlation import find_stacked_tolerance, note_dead, standardise

log = logging.getLogger(__name__)
LARGEST_JITTER = 1e-2
SINGULAR = (0.7, 2.0)
"""Features per sample of a batch between which K's smallest eigenvalues are tiny but not 0, and decide the loss."""


@terms.register("lddecorr")
class LDDecorr(Term):
    """-weight log det(K + jitter I), K the correlation matrix of the batch's features (FedBlade, eq. 11)."""

    weight: float = param(default=0.005, ge=0, doc="strength, the paper's beta of eq. 17", source="FedBlade, Fig. 6")
    jitter: float = param(default=1e-4, gt=0, le=0.01, doc="added to the diagonal of K", source="FedBlade, Sec. 4.1")
    var_eps: float = param(default=1e-8, gt=0, doc="added to the features' variances", source="FedDecorr's code")

    @property
    def stacked_tolerance(self) -> float:  # type: ignore[override]
        """Nothing below a `var_eps` of 0.01."""
        return find_stacked_tolerance(self.var_eps)

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The term; 0 for one sample, and for a batch whose matrix has no factor even with more jitter."""
        x, degrees = standardise(out.features, batch.mask, self.var_eps)
        note_dead(c, x, degrees)
        value, done = minus_log_det(x, degrees, batch.mask, self.jitter)
        c.diagnostics.note("lddecorr_skipped", (~done).to(value.dtype))  # the share of such batches
        return self.weight * torch.where(degrees > 0, value, 0.0)


@functools.lru_cache(maxsize=16)
def warn_of_width(method: str, features: int, batch: int) -> None:
    """Says, once, where LDDecorr pulls at rounding noise: K is near-singular if it is about as wide as its batch."""
    if SINGULAR[0] <= features / batch <= SINGULAR[1]:
        log.warning(
            "%s: with %d features and batches of %d LDDecorr's matrix is nearly singular (smallest eigenvalues about "
            "1e-5 of the largest; at the paper's 1280 features and batches of 64 they are about 1), so that few "
            "directions dominate its gradient; take batches below %d or above %d, a wider network, or "
            "decorrelation=none", method, features, batch, features // 2, int(features / SINGULAR[0]),
        )  # fmt: skip


def minus_log_det(x: Tensor, degrees: Tensor, mask: Tensor | None, jitter: float) -> tuple[Tensor, Tensor]:
    """-log det(K + jitter I) of K = X^T X / degrees, and whether it could be computed; else it is 0.

    If B < d, the B x B matrix X X^T / degrees is used: K + jitter I then has d - B further eigenvalues, all equal to
    jitter. A padded row also gives one of these, so padding needs no correction.
    """
    batch, size = x.shape
    wide = batch < size
    small = (x @ x.T if wide else x.T @ x) / degrees.clamp(min=1)
    # columns of mean 0 make the vector of ones an eigenvector of X X^T with eigenvalue 0; with 1 in its place the
    # matrix is well conditioned in float32, and the gradient the same: centring takes that direction out again
    lifted = small.detach() + _mean_projection(x, mask) if wide else small.detach()
    inverse, log_det, used, done = _factorise(lifted, jitter)
    if wide:  # log det(K + e I) = log det(lifted + e I) - log(1 + e) + (d - B + 1) log e
        log_det = log_det - used.log1p() + (size - batch + 1) * used.log()
    # d log det(M) = <M^-1, dM>; the difference is 0 and carries the gradient
    surrogate = (inverse * (small - small.detach())).sum()
    return torch.where(done, -log_det, 0.0) - surrogate, done


def _mean_projection(x: Tensor, mask: Tensor | None) -> Tensor:
    """11^T / n over the n real rows."""
    ones = torch.ones_like(x[:, 0]) if mask is None else mask.to(x.dtype)
    return torch.outer(ones, ones) / ones.sum().clamp(min=1)


def _factorise(gram: Tensor, jitter: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inverse and log-determinant of gram + jitter I, the jitter that was needed, and whether any was enough.

    First as it comes, then in float64, then with ten times the jitter, up to 1e-2.
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
