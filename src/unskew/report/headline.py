"""What came out, in a sentence of plain words."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from unskew.base.text import count_of
from unskew.measures.statistics import FEWEST_SEEDS, Difference, Ranks, paired_difference

BySeed = Mapping[int, float]
LONGEST = 28
"""Letters of a method's name that are said whole."""
LEVEL = 0.005
"""Points below which two means are said to be the same: they are printed alike."""
WHOSE = {"accuracy %": "", "global %": ", with one global model", "personal %": ", with the models that clients use"}
"""How a column of the table is said."""


def write_headline(figures: Mapping[str, Mapping[str, BySeed]], first: str, data: str, state: str = "") -> list[str]:
    """A sentence for each kind of accuracy: who won, by how much, and whether the spread allows to say so.

    `figures`: heading → method → seed → per cent; `first`: whom all are compared with; `state`: how far they came.
    """
    said = shorten({**dict.fromkeys(name for own in figures.values() for name in own), first: None})
    return [
        _tell(f" on {data}{WHOSE.get(heading, '')}{state}", {said[name]: own[name] for name in own}, said[first])
        for heading, own in figures.items()
        if own
    ]


def shorten(names: Collection[str]) -> dict[str, str]:
    """Long names without their options, where that still tells methods apart."""
    plain = [name.partition("(")[0] for name in names]
    return {
        name: f"{own}(…)" if len(name) > LONGEST and own != name and plain.count(own) == 1 else name
        for name, own in zip(names, plain, strict=True)
    }


def _tell(where: str, methods: Mapping[str, BySeed], first: str) -> str:
    means = {name: float(np.mean(list(own.values()))) for name, own in methods.items()}
    ranking = sorted(means, key=lambda name: -means[name])
    best = ranking[0]
    if len(ranking) == 1:
        seeds = len(methods[best])
        return f"{best} reaches {means[best]:.2f} %{where}" + (f" (mean of {seeds} seeds)." if seeds > 1 else ".")
    level = [name for name in ranking if means[best] - means[name] < LEVEL]
    if len(level) == len(ranking):
        all_ = "Both methods" if len(ranking) == 2 else f"All {len(ranking)} methods"
        return f"{all_}{where}{',' * (',' in where)} are level at {means[best]:.2f} %."
    if len(level) > 1:
        others = ", ".join(level[1:-1])
        names = f"{best}{', ' * bool(others)}{others} and {level[-1]}"
        next_ = f"the next is {ranking[len(level)]} with {means[ranking[len(level)]]:.2f} %"
        return f"Of {count_of(len(ranking), 'method')}{where}, {names} are level at {means[best]:.2f} %; {next_}."
    second = ranking[1]
    begin = f"Of {count_of(len(ranking), 'method')}{where}, {best}"
    ahead = paired_difference(methods[best], methods[second])
    beyond = paired_difference(methods[best], methods[first]) if first in methods and first not in ranking[:2] else None
    if ahead is None:
        return f"{begin} has the highest accuracy, {means[best]:.2f} %; it shares no seed with {second}, the next."
    if ahead.low is None:
        few = f"with {count_of(ahead.pairs, 'seed')} there is no interval (it takes {FEWEST_SEEDS})"
        return f"{begin} is ahead with {means[best]:.2f} %: {ahead.mean:.2f} points above {second}; {few}."
    interval = f"95 % interval {describe(ahead)}, paired over {ahead.pairs} seeds"
    if ahead.is_clear:
        more = f" and {beyond.mean:.2f} above {first} ({describe(beyond)})" if beyond else ""
        return f"{begin} wins with {means[best]:.2f} %: {ahead.mean:.2f} points above {second} ({interval}){more}."
    unclear = f"with no difference larger than the spread to {second} ({ahead.mean:.2f} points; {interval})"
    return f"{begin} has the highest mean, {means[best]:.2f} %, {unclear}{_against(beyond, first)}."


def rank_headline(ranks: Mapping[str, Ranks]) -> list[str]:
    """A sentence for each kind of accuracy about the ranks over several settings."""
    return [_tell_rank(own, WHOSE.get(heading, "")) for heading, own in ranks.items()]


def _tell_rank(ranks: Ranks, whose: str) -> str:
    order = sorted(zip(ranks.mean, ranks.methods, strict=True))
    (first, best), *others = order
    near = [name for mean, name in others if mean - first < ranks.critical]
    begin = f"Over {ranks.settings} settings{whose}, {best} has the best mean rank, {first:.2f} of {len(order)}"
    if not near:
        return f"{begin}, ahead of all others by more than the critical difference ({ranks.critical:.2f})."
    if len(near) == len(others):
        return f"{begin}, but no method is told apart from it (critical difference {ranks.critical:.2f})."
    return f"{begin}; {', '.join(near)} cannot be told apart from it (critical difference {ranks.critical:.2f})."


def _against(gap: Difference | None, first: str) -> str:
    """The distance to the method that all are compared with."""
    if gap is None:
        return ""
    if gap.is_clear:
        return f", but {gap.mean:.2f} points above {first} ({describe(gap)})"
    return f", nor to {first} ({gap.mean:.2f} points; {describe(gap)})"


def describe(gap: Difference) -> str:
    """The interval, such as `−1.20 to 5.60`."""
    if gap.low is None or gap.high is None:
        return "no interval"
    return f"{gap.low:.2f} to {gap.high:.2f}".replace("-", "−")
