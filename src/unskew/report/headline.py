"""What came out, in a sentence of plain words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from unskew.base.text import count_of
from unskew.measures.statistics import FEWEST_SEEDS, Difference, paired_difference

BySeed = Mapping[int, float]
WHOSE = {"accuracy %": "", "global %": " with one global model", "personal %": " with the models that clients use"}
"""How a column of the table is said."""


def write_headline(figures: Mapping[str, Mapping[str, BySeed]], first: str, state: str = "") -> list[str]:
    """A sentence for each kind of accuracy: who won, by how much, and whether the spread allows to say so.

    `figures`: heading → method → seed → per cent; `first`: whom all are compared with; `state`: how far they came.
    """
    return [_tell(WHOSE.get(heading, ""), own, first, state) for heading, own in figures.items() if own]


def _tell(whose: str, methods: Mapping[str, BySeed], first: str, state: str) -> str:
    means = {name: float(np.mean(list(own.values()))) for name, own in methods.items()}
    ranking = sorted(means, key=lambda name: -means[name])
    best = ranking[0]
    if len(ranking) == 1:
        seeds = len(methods[best])
        over = f", the mean of {seeds} seeds" if seeds > 1 else ""
        return f"{best} reaches {means[best]:.2f} %{whose}{over}{state}."
    second = ranking[1]
    ahead = paired_difference(methods[best], methods[second])
    begin = f"Of {count_of(len(ranking), 'method')}{whose}{state}, "
    if ahead is None:
        return (
            f"{begin}{best} has the highest accuracy, {means[best]:.2f} %; no seed is shared with {second}, the next."
        )
    if ahead.low is None:
        few = f"with {count_of(ahead.pairs, 'seed')} there is no interval (it takes {FEWEST_SEEDS})"
        return f"{begin}{best} is ahead with {means[best]:.2f} %, {describe(ahead)} above {second}; {few}."
    if ahead.is_clear:
        against = _against(methods, best, first) if second != first else ""
        return f"{begin}{best} wins with {means[best]:.2f} %, {describe(ahead)} above {second}{against}."
    against = _against(methods, best, first) if second != first and best != first else ""
    level = (
        f"{best} ({means[best]:.2f} %) and {second} ({means[second]:.2f} %) show no difference larger than the spread"
    )
    return f"{begin}{level}: {describe(ahead)}{against}."


def _against(methods: Mapping[str, BySeed], best: str, first: str) -> str:
    """The distance to the method that all are compared with."""
    if best == first or first not in methods:
        return ""
    gap = paired_difference(methods[best], methods[first])
    if gap is None:
        return ""
    return f"; {best} is {describe(gap)} above {first}" + ("" if gap.is_clear else ", which is within the spread, too")


def describe(gap: Difference) -> str:
    """`2.22 points (95 % interval −1.2 to 5.6, paired over 3 seeds)`."""
    points = f"{gap.mean:.2f} points"
    if gap.low is None or gap.high is None:
        return points
    return f"{points} (95 % interval {_signed(gap.low)} to {_signed(gap.high)}, paired over {gap.pairs} seeds)"


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
