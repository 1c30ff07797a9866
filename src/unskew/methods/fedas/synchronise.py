"""FedAS, eq. 7, client synchronisation: the round's weights, made of the clients' Fisher traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Rule = Literal["proportional", "softmax", "minmax"]


def shares(traces: Sequence[float], sizes: Sequence[float], rule: Rule) -> list[float]:
    """alpha'_i (eq. 7): the clients' weights, which sum to 1.

    They are the sample counts where a trace is unknown, and with `proportional` where all are 0.
    """
    if any(value < 0 or not math.isfinite(value) for value in traces):
        return _divide_by_sum(sizes)
    least, most = min(traces), max(traces)
    if rule == "softmax":
        return _divide_by_sum([math.exp(value - most) for value in traces])
    if rule == "minmax":
        return _divide_by_sum([value - least for value in traces])
    # by the largest one first: a sum of huge numbers may overflow
    return _divide_by_sum([value / most for value in traces] if most > 0 else sizes)


def _divide_by_sum(values: Sequence[float]) -> list[float]:
    whole = sum(values)
    return [value / whole if whole > 0 else 1 / len(values) for value in values]
