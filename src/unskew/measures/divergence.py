"""Weight divergence: distances of the clients' models to the received one and to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from unskew.measures.base import Figures, measures
from unskew.measures.updates import UpdateMeasure, Updates


def weight_divergence(updates: Updates) -> tuple[float, float | None]:
    """The mean of |w_g - w_k| over clients, and of |w_i - w_j| over pairs of them (FedSOL, Fig. 6)."""
    m = updates.clients
    gram, squares = torch.zeros(m, m, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    for block in updates.blocks():
        squares += block.square().sum(1)
        centred = block - block.mean(0)  # distances stay, and less is cancelled below
        gram += centred @ centred.T
    own = gram.diagonal()
    between = (own[:, None] + own[None, :] - 2 * gram).clamp(min=0).sqrt()
    pairs = between[tuple(torch.triu_indices(m, m, 1))]
    return float(squares.sqrt().mean()), float(pairs.mean()) if len(pairs) else None


@measures.register("divergence")
class Divergence(UpdateMeasure):
    """Weight divergence: mean |w_g - w_k| to the received model, and mean |w_i - w_j| over pairs (FedSOL, Fig. 6)."""

    reading: ClassVar[Mapping[str, str]] = {
        "divergence": "How far clients end from the model that they received; higher: local training changes more.",
        "divergence_mutual": "How far clients end from each other; higher: they disagree more.",
    }

    def measure(self, updates: Updates) -> Figures:
        """`divergence` and `divergence_mutual`."""
        to_global, mutual = weight_divergence(updates)
        return {"divergence": to_global, "divergence_mutual": mutual}
