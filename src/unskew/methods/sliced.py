"""Distances of two vectors of logits, row by row: sliced Wasserstein on random lines, or of their sorted entries."""

from __future__ import annotations

import torch
from torch import Tensor


def directions(count: int, size: int, rng: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """[L, C]: unit vectors, uniform on the sphere."""
    drawn = torch.randn(count, size, generator=rng, dtype=dtype)
    length: Tensor = torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
    return drawn / length.clamp(min=1e-12)


def sliced(u: Tensor, v: Tensor, theta: Tensor, order: int) -> Tensor:
    """[C]: for each row the mean over directions of |theta . (u - v)|^p; a row is one point, so there is no transport.

    For p = 2 its expectation is ||u - v||^2 / C.
    """
    along = (u - v) @ theta.T
    return (along.square() if order == 2 else along.abs()).mean(1)


def sorted_entries(u: Tensor, v: Tensor) -> Tensor:
    """[C]: for each row the mean of |sort(u) - sort(v)|: its entries taken as samples of a distribution."""
    return (u.sort(1).values - v.sort(1).values).abs().mean(1)
