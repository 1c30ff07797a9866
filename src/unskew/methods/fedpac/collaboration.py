"""FedPAC, Sec. 4.2: which clients' heads a client combines, from what each says of its features."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float64]
SMALL = 1e-3
"""Weights below this are zero."""
DROPPED = 0.01
"""Eigenvalues below this are left out of a matrix that is not positive semi-definite."""
_ROUNDING = 1e-13
"""What is smaller than this, as a share of the mean eigenvalue, is rounding."""


def objectives(variances: Tensor, means: Tensor) -> Matrix:
    """P [m, m, m]: P_i = diag(V) + D_i with D_i[a][b] = <h_i - h_a, h_i - h_b>, from V [m] and h [m, C, d]."""
    flat = means.flatten(1).double().cpu().numpy()
    gram = flat @ flat.T
    own = np.diag(gram)[:, None, None]
    found: Matrix = own - gram[:, :, None] - gram[:, None, :] + gram + np.diag(variances.double().cpu().numpy())
    return found


def solve(matrix: Matrix) -> Matrix:
    """The a >= 0 with sum 1 that makes a' P a smallest.

    With P = R' R it is x / sum(x), where x >= 0 makes |R x - b| smallest and R' b = 1: the conditions for a minimum are
    the same, and non-negative least squares are solved exactly.
    """
    from scipy.optimize import nnls  # takes half a second, which listings need not wait for

    values, vectors = np.linalg.eigh(matrix)
    least = _ROUNDING * max(abs(values).mean(), np.finfo(np.float64).tiny / _ROUNDING)
    if values[0] < -1000 * least:  # not positive semi-definite
        values = np.where(values < DROPPED, 0.0, values)
    roots = np.sqrt(np.maximum(values, least))
    found, _ = nnls(roots[:, None] * vectors.T, vectors.sum(0) / roots, maxiter=100 * len(matrix))
    whole: Matrix = found / found.sum()
    return whole


def drop_small(weights: Matrix) -> Matrix:
    """Weights below 0.001 are zero, the others sum to 1."""
    kept = np.where(weights < SMALL, 0.0, weights)
    whole: Matrix = kept / kept.sum()
    return whole


def head_weights(variances: Tensor, means: Tensor) -> Tensor:
    """alpha [m, m]: how much of each client's head goes into client i's, in row i."""
    return torch.from_numpy(np.stack([drop_small(solve(matrix)) for matrix in objectives(variances, means)]))
