"""Forgetting: how much the global model has lost on each class since it was best there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from unskew.measures.base import Figures, Look, Measure, measures


def forgetting(classwise: Sequence[Sequence[float]]) -> float:
    """The mean over classes of best earlier accuracy minus the last one (FedSOL, Fig. 7)."""
    table = np.asarray(classwise, dtype=np.float64)
    return float((table[:-1].max(0) - table[-1]).mean())


@measures.register("forgetting")
class Forgetting(Measure):
    """Mean over classes of the best earlier accuracy of the global model minus the present one (FedSOL, Fig. 7)."""

    reading: ClassVar[Mapping[str, str]] = {
        "forgetting": "Accuracy lost since each class was at its best; 0: nothing was forgotten.",
    }

    on_test: ClassVar[bool] = True

    def figures(self, look: Look) -> Figures:
        """`forgetting`, from the second test on; round 0, the initial model, has learnt nothing to forget."""
        look.require_global_model()
        tests = [row["class_accuracy"] for row in (*look.earlier, look.row) if row["round"] and "class_accuracy" in row]
        if "class_accuracy" not in look.row or len(tests) < 2:
            return {}
        tested = [number for number, value in enumerate(tests[0]) if value is not None]
        return {"forgetting": forgetting([[test[number] for number in tested] for test in tests])}
