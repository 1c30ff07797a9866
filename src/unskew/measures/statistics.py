"""What seeds and settings can tell about methods: paired differences with intervals, and ranks.

paired_difference   Student's interval of the mean difference under the same seeds
compare_ranks       Friedman's test over settings, and Nemenyi's critical difference (Demsar, JMLR 2006)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

FEWEST_SEEDS = 3
"""With fewer pairs there is no interval: its width would be a matter of luck."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs; without an interval where there are too few of them."""

    mean: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_difference(
    one: Mapping[int, float], other: Mapping[int, float], confidence: float = CONFIDENCE
) -> Difference | None:
    """One's figures minus the other's under the same seeds (seed → figure); None where they share no seed."""
    values = [one[seed] - other[seed] for seed in one if seed in other]
    if not values:
        return None
    mean = float(np.mean(values))
    if len(values) < FEWEST_SEEDS:
        return Difference(mean, None, None, len(values))
    half = student_quantile(len(values), confidence) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Difference(mean, mean - half, mean + half, len(values))


def student_quantile(pairs: int, confidence: float = CONFIDENCE) -> float:
    """How many standard errors the interval of a mean reaches to each side."""
    from scipy.special import stdtrit  # quickly imported; scipy.stats takes half a second

    return float(stdtrit(pairs - 1, (1 + confidence) / 2))


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods over settings, 1 being the best."""

    methods: tuple[str, ...]
    mean: tuple[float, ...]
    settings: int
    p_value: float | None
    """Friedman's: how likely such ranks are where all methods are equally good; None with fewer than three methods."""
    critical: float
    """Mean ranks that are less than this apart cannot be told apart (Nemenyi)."""


def compare_ranks(figures: Mapping[str, Sequence[float]], confidence: float = CONFIDENCE) -> Ranks:
    """The ranks of methods (name → a figure for each setting, higher is better, the same settings for all)."""
    from scipy.stats import friedmanchisquare, rankdata

    methods, table = tuple(figures), np.array(list(figures.values()), dtype=np.float64)
    if table.ndim != 2 or len(methods) < 2 or table.shape[1] < 2:
        raise ValueError("expected at least two methods, each with a figure for at least two settings")
    mean = rankdata(-table, axis=0).mean(axis=1)
    settled = len(methods) >= 3 and bool((table != table[:1]).any())
    p_value = float(friedmanchisquare(*table).pvalue) if settled else None
    return Ranks(methods, tuple(map(float, mean)), table.shape[1], p_value,
                 critical_difference(len(methods), table.shape[1], confidence))  # fmt: skip


def critical_difference(methods: int, settings: int, confidence: float = CONFIDENCE) -> float:
    """Nemenyi's: q sqrt(k (k + 1) / (6 N)), where q is the studentised range's quantile over sqrt 2."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(confidence, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * settings))
