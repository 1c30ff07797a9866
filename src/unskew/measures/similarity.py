"""Layer similarity: how far the clients' updates agree, layer by layer; FLFA's reducer and skewness do the work."""

from __future__ import annotations

from typing import Any, ClassVar

from unskew.measures.base import Figures, measures
from unskew.measures.updates import UpdateMeasure
from unskew.methods.flfa.selection import similarity, skewness


@measures.register("similarity")
class Similarity(UpdateMeasure):
    """Layer similarity z: mean cosine of the clients' updates to their mean, per layer, and its skewness (FLFA)."""

    reducer: ClassVar[Any] = similarity

    def measure(self, updates: similarity) -> Figures:
        """`similarity` (layer → z), `similarity_mean` and `similarity_skewness`."""
        z = {layer: float(value) for layer, value in updates.result().items()}
        if not z:
            return {}
        values = list(z.values())
        return {"similarity": z, "similarity_mean": sum(values) / len(values), "similarity_skewness": skewness(values)}
