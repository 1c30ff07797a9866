"""Effective rank: how many directions the features really use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from unskew.measures.base import Figures, measures
from unskew.measures.features import FeatureMeasure


def spectrum(features: Tensor) -> Tensor:
    """The eigenvalues of the features' covariance matrix times their number, rising; at most as many as samples.

    The smaller of the two Gram matrices has all of them that are not 0.
    """
    centred = features - features.mean(0)
    gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    values: Tensor = torch.linalg.eigvalsh(gram)
    return values.clamp(min=0)


def effective_rank(features: Tensor) -> float:
    """exp(entropy(sigma / sum sigma)) of the singular values of the covariance matrix; 0 if nothing varies."""
    values = spectrum(features)  # their scale cancels
    total = values.sum()
    if total <= 0:
        return 0.0
    return float(torch.special.entr(values / total).sum().exp())


def correlation_rank(features: Tensor) -> float:
    """The same of the correlation matrix; features that do not vary have no correlation and are left out."""
    spread = features.std(0, correction=0)
    varies = spread > 1e-12 * features.abs().amax(0).clamp(min=torch.finfo(features.dtype).tiny)
    return effective_rank((features / torch.where(varies, spread, 1.0))[:, varies])


@measures.register("rank")
class Rank(FeatureMeasure):
    """Effective rank of the features' covariance matrix and of their correlation matrix (FedBlade, Fig. 4 and 5)."""

    reading: ClassVar[Mapping[str, str]] = {
        "rank_covariance": "How many directions the features use; a drop towards 1 is dimensional collapse.",
        "rank_correlation": "The same without the scale of single features; a drop is dimensional collapse.",
    }

    names: ClassVar[tuple[str, ...]] = ("rank_covariance", "rank_correlation")

    def measure(self, features: Tensor, y: Tensor) -> Figures:
        """`rank_covariance` and `rank_correlation`."""
        return {"rank_covariance": effective_rank(features), "rank_correlation": correlation_rank(features)}


@measures.register("spectrum")
class Spectrum(FeatureMeasure):
    """All eigenvalues of the features' covariance matrix, the largest first (FedBlade, Fig. 2)."""

    reading: ClassVar[Mapping[str, str]] = {
        "spectrum": "Where it falls steeply, features use few directions; a flat one uses many.",
    }

    names: ClassVar[tuple[str, ...]] = ("spectrum",)

    def measure(self, features: Tensor, y: Tensor) -> Figures:
        """`spectrum`, a list."""
        return {"spectrum": (spectrum(features) / len(features)).flip(0).tolist()}
