"""Separability of features: how far apart the classes are, relative to how far each one spreads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from unskew.measures.base import Figures, measures
from unskew.measures.features import FeatureMeasure, by_class


def separability(features: Tensor, y: Tensor) -> Figures:
    """Distances within classes, between class means, and inter/intra (FLFA, eq. 56-58); L2, not squared."""
    classes = by_class(features, y)
    count = len(classes.means)
    distances = torch.zeros(count, dtype=features.dtype).index_add_(0, classes.number, classes.within.norm(dim=1))
    intra = float((distances / torch.bincount(classes.number, minlength=count)).mean())
    pairs = torch.pdist(classes.means)
    inter = float(pairs.mean()) if len(pairs) else None
    return {"intra": intra, "inter": inter, "separability": inter / intra if inter is not None and intra > 0 else None}


@measures.register("separability")
class Separability(FeatureMeasure):
    """Separability of the global model's features: distances within and between classes, and their ratio (FLFA)."""

    reading: ClassVar[Mapping[str, str]] = {
        "intra": "Distance of features to their class mean; lower: classes are tighter.",
        "inter": "Distance between class means; higher: classes are further apart.",
        "separability": "Distance between classes over distance within; higher: classes are easier to tell apart.",
    }

    names: ClassVar[tuple[str, ...]] = ("intra", "inter", "separability")

    def measure(self, features: Tensor, y: Tensor) -> Figures:
        """`intra`, `inter`, `separability`."""
        return separability(features, y)
