"""Standardised features of a batch, whose products X^T X are correlation matrices; padding left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unskew.core.context import ClientContext
from unskew.core.tolerance import NONE, USUAL

STEADY = 0.01
"""From this `var_eps` on, the executors stay as near as usual; below it nothing holds."""
MANY_DEAD = 0.4
"""The share of dead features with which networks seldom learnt: docs/methods/fedblade.md has the figures."""


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


def note_dead(c: ClientContext, x: Tensor, degrees: Tensor) -> None:
    """Notes the share of standardised features that are the same for the whole batch; of one sample, nothing is."""
    share = (x.detach().abs().amax(0) == 0).to(x.dtype).mean()
    c.diagnostics.note("dead_features", torch.where(degrees > 0, share, 0.0))


def judge_dead(clients: Sequence[dict[str, Any]]) -> str:
    """What to say where few features are alive under decorrelation, of the rows of a round's clients; else nothing."""
    noted = [(row["dead_features"], row["steps"]) for row in clients if row["used"] and "dead_features" in row]
    steps = sum(taken for _, taken in noted)
    share = sum(dead * taken for dead, taken in noted) / steps if steps else 0.0
    if share <= MANY_DEAD:
        return ""
    return (
        f"{share:.0%} of the features are the same for all samples of a batch, on average (dead_features in "
        "clients.jsonl), as decorrelation can make them where they have little spread; if accuracy stays low, take a "
        "larger var_eps (0.01), a lower learning rate, or no decorrelation"
    )
