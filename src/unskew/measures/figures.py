"""The papers' ways to sum a curve, or one value per client or seed, up in one number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def last(curve: Sequence[float]) -> float:
    """The last round (FedSOL)."""
    return float(curve[-1])


def last_k_mean(curve: Sequence[float], k: int) -> float:
    """The mean of the last k rounds (FedBlade: 10)."""
    return float(np.mean(curve[-k:]))


def last_share_mean(curve: Sequence[float], share: float = 0.1) -> float:
    """The mean of the last max(1, floor(share * rounds)) rounds (FLFA: the last 10 %)."""
    return last_k_mean(curve, max(1, int(share * len(curve) + 1e-9)))


def best(curve: Sequence[float]) -> float:
    """The best round; on test data report it under that name only (FedAS, FedAF)."""
    return float(max(curve))


def at_best_validation(curve: Sequence[float], validation: Sequence[float]) -> float:
    """The test figure of the round that was best on validation data (the first of equals)."""
    return float(curve[int(np.argmax(validation))])


def worst_share_mean(values: Sequence[float], share: float = 0.1) -> float:
    """The mean of the worst share of clients, at least one: the worst decile by default."""
    ordered = sorted(values)
    return float(np.mean(ordered[: max(1, int(share * len(ordered) + 1e-9))]))


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds; the deviation of one seed is NaN."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
