"""Layer similarity: how far the clients' updates agree, layer by layer; FLFA's reducer and skewness do the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from unskew.measures.base import Figures, measures
from unskew.measures.updates import UpdateMeasure
from unskew.methods.flfa.selection import similarity, skewness


@measures.register("similarity")
class Similarity(UpdateMeasure):
    """Layer similarity z: mean cosine of the clients' updates to their mean, per layer, and its skewness (FLFA)."""

    reading: ClassVar[Mapping[str, str]] = {
        "similarity": "1: the clients' updates of this layer point the same way; 0: they have nothing in common.",
        "similarity_mean": "Higher: clients agree more about where to go, over all layers.",
        "similarity_skewness": "Below 0: few layers disagree while most agree; above 0: few layers agree.",
    }

    reducer: ClassVar[Any] = similarity

    def measure(self, updates: similarity) -> Figures:
        """`similarity` (layer → z), `similarity_mean` and `similarity_skewness`."""
        z = {layer: float(value) for layer, value in updates.result().items()}
        if not z:
            return {}
        values = list(z.values())
        return {"similarity": z, "similarity_mean": sum(values) / len(values), "similarity_skewness": skewness(values)}
