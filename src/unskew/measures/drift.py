"""Local drift: how far the clients' updates scatter around their mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from unskew.measures.base import Figures, measures
from unskew.measures.updates import UpdateMeasure, Updates


def local_drift(updates: Updates) -> float:
    """H = (1/m) sum_k |Delta_k - mean Delta|, unweighted, parameters only (FLFA, eq. 59)."""
    squares = torch.zeros(updates.clients, dtype=torch.float64)
    for block in updates.blocks():
        squares += (block - block.mean(0)).square().sum(1)
    return float(squares.sqrt().mean())


@measures.register("drift")
class Drift(UpdateMeasure):
    """Local drift H: mean over clients of |Delta_k - mean Delta|, unweighted, parameters that travel (FLFA, eq. 59)."""

    reading: ClassVar[Mapping[str, str]] = {
        "drift": "Higher: the clients of a round pull in more different directions; 0: they all move alike.",
    }

    def measure(self, updates: Updates) -> Figures:
        """`drift`."""
        return {"drift": local_drift(updates)}
