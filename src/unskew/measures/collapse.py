"""Neural collapse: classes shrink to their means (NC1), and the means spread like a simplex (NC2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from unskew.measures.base import Figures, measures
from unskew.measures.features import FeatureMeasure, by_class

NAMES = ("nc1_trace_pinv", "nc1_trace_ratio", "nc2_gram", "nc2_normalised")


def collapse(features: Tensor, y: Tensor) -> Figures:
    """Neural collapse: variability within classes (NC1) and distance of the class means to a simplex ETF (NC2)."""
    classes = by_class(features, y)
    centred, count, samples = classes.centred, len(classes.means), len(features)
    if count < 2:
        return dict.fromkeys(NAMES)
    # Sigma_B = M^T M / C with M = U S V^T: its pseudo-inverse is V (C / S^2) V^T
    _, s, v = torch.linalg.svd(centred, full_matrices=False)
    kept = s.square() > max(centred.shape) * torch.finfo(s.dtype).eps * s[0].square()
    along = (classes.within @ v[kept].T).square().sum(0) / samples
    between = float(centred.square().sum()) / count
    return {
        "nc1_trace_pinv": float((along * count / s[kept].square()).sum()) / count if between > 0 else None,
        "nc1_trace_ratio": float(classes.within.square().sum()) / samples / between if between > 0 else None,
        **distance_to_simplex(centred),
    }


def distance_to_simplex(centred: Tensor) -> Figures:
    """NC2 with the class means normalised one by one, and with their Gram matrix normalised as a whole.

    Papers use either; the first ignores how long the means are, the second does not.
    """
    count = len(centred)
    simplex = (torch.eye(count, dtype=centred.dtype) * count - 1) / (count - 1)
    lengths = centred.norm(dim=1, keepdim=True)
    directions = centred / torch.where(lengths > 0, lengths, 1.0)
    gram = centred @ centred.T
    size = gram.norm()
    normalised = gram / size - simplex / simplex.norm()
    return {
        "nc2_gram": float((directions @ directions.T - simplex).norm()),
        "nc2_normalised": float(normalised.norm()) if size > 0 else None,
    }


@measures.register("collapse")
class Collapse(FeatureMeasure):
    """Neural collapse, NC1 and NC2, each in two forms (FedBlade; formulas in docs/measures.md)."""

    reading: ClassVar[Mapping[str, str]] = {
        "nc1_trace_pinv": "Spread within classes against that between them; towards 0: neural collapse.",
        "nc1_trace_ratio": "The same as a plain ratio; lower: features of a class coincide more.",
        "nc2_gram": "How far the class means are from a simplex; 0: all classes are equally far apart.",
        "nc2_normalised": "The same with the lengths of class means; 0: a simplex of equal lengths.",
    }

    names: ClassVar[tuple[str, ...]] = NAMES

    def measure(self, features: Tensor, y: Tensor) -> Figures:
        """`nc1_trace_pinv`, `nc1_trace_ratio`, `nc2_gram`, `nc2_normalised`."""
        return collapse(features, y)
