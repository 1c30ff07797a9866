"""Vectors of norm 1, whose products are cosines."""

from __future__ import annotations

import torch
from torch import Tensor


def normalise(vectors: Tensor) -> Tensor:
    """Vectors of norm 1 along the last dimension; a zero vector stays 0, and gets no gradient."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return torch.where(norms > 0, vectors / norms.clamp(min=1e-12), 0.0)
