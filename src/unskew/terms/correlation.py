"""Standardised features of a batch, whose products X^T X are correlation matrices; padding left out."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.core.tolerance import NONE, USUAL

STEADY = 0.01
"""From this `var_eps` on, the executors stay as near as usual; below it nothing holds."""


def find_stacked_tolerance(var_eps: float) -> float:
    """How near `stacked` comes to `serial` with a term of standardised features.

    A ReLU feature that is barely above zero in one sample of the batch has a tiny spread, and the gradient changes by
    1 / spread^2 with the weights: each step multiplies rounding by up to a hundred. docs/design.md has the figures.
    """
    return USUAL if var_eps >= STEADY else NONE


def standardise(features: Tensor, mask: Tensor | None, var_eps: float) -> tuple[Tensor, Tensor]:
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
