"""Which settings of a method are tried, in which order: a grid, random draws, successive halving.

The common part of the j-th setting (`lr`) is the same for every method, so that nobody is luckier in what is shared.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.runs.tuning.space import Axis, Setting

Kind = Literal["grid", "random", "halving", "optuna"]
KINDS: tuple[Kind, ...] = ("grid", "random", "halving", "optuna")
FACTOR = 3
"""Halving keeps a third of the settings and gives them three times the rounds."""


class Try(NamedTuple):
    """A setting, to be run for so many rounds."""

    setting: Setting
    rounds: int


class Search(Protocol):
    """Asks for tries in batches, and is told what came of them; the same answers lead to the same questions."""

    def propose(self) -> list[Try]:
        """What to try next; nothing: it is done."""

    def learn(self, scores: Sequence[float | None]) -> None:
        """The validation figures of the last batch; None: it diverged."""


class Listed:
    """A fixed list of settings, all rounds each."""

    def __init__(self, settings: Sequence[Setting], rounds: int) -> None:
        self._left = [Try(setting, rounds) for setting in settings]

    def propose(self) -> list[Try]:
        """All of them, once."""
        batch, self._left = self._left, []
        return batch

    def learn(self, scores: Sequence[float | None]) -> None:
        """Changes nothing."""


class Halving:
    """All settings for a few rounds, the better third for three times as many, and so on to all rounds."""

    def __init__(self, settings: Sequence[Setting], rounds: int) -> None:
        self._alive, self._rungs = list(settings), list_rungs(rounds)

    def propose(self) -> list[Try]:
        """Those that are left, at the next rung."""
        if not self._rungs or not self._alive:
            return []
        rounds = self._rungs.pop(0)
        return [Try(setting, rounds) for setting in self._alive]

    def learn(self, scores: Sequence[float | None]) -> None:
        """Keeps the better third, the earlier of equals; what diverged is out."""
        found = [(score, place) for place, score in enumerate(scores) if score is not None]
        best = sorted(found, key=lambda each: (-each[0], each[1]))[: -(-len(scores) // FACTOR)]
        self._alive = [self._alive[place] for _, place in best]


def list_rungs(rounds: int) -> list[int]:
    """A ninth, a third and all of the rounds; fewer where there are few."""
    return sorted({-(-rounds // FACTOR**power) for power in (2, 1, 0)})


def count_halved(budget: int, rounds: int) -> int:
    """With how many settings halving may begin so that its rounds are those of `budget` whole runs at most."""
    rungs = list_rungs(rounds)

    def cost(settings: int) -> int:
        return sum(-(-settings // FACTOR**rung) * length for rung, length in enumerate(rungs))

    number = 1
    while cost(number + 1) <= budget * rounds:
        number += 1
    return number


def count_settings(axes: Sequence[Axis]) -> int | None:
    """How many settings there are; None: a range has no number."""
    number = 1
    for axis in axes:
        if axis.kind:
            return None
        number *= len(axis.values)
    return number


def list_settings(axes: Sequence[Axis], method: str, number: int, seed: int) -> list[Setting]:
    """So many settings at most: all of a small grid in its order, else a draw without repetition."""
    whole = count_settings(axes)
    if whole is None:
        return [_draw(axes, method, place, seed) for place in range(number)]
    if whole <= number:
        return [_join(axes, values) for values in itertools.product(*(axis.values for axis in axes))]
    return list(itertools.islice(_shuffle(axes, method, seed), number))


def _shuffle(axes: Sequence[Axis], method: str, seed: int) -> itertools.chain[Setting]:
    """All settings: round after round through the shuffled common ones, each time with another of the method's own."""
    common, own = ([axis for axis in axes if bool(axis.method) is theirs] for theirs in (False, True))
    shared = list(itertools.product(*(axis.values for axis in common)))
    random.Random(seeds.derive(seed, f"tune/{'/'.join(axis.path for axis in common)}")).shuffle(shared)
    each = []
    for place in range(len(shared)):
        mine = list(itertools.product(*(axis.values for axis in own)))
        random.Random(seeds.derive(seed, f"tune/{method}", place)).shuffle(mine)
        each.append(mine)
    return itertools.chain.from_iterable(
        (
            _join(axes, _merge(axes, values, each[place][turn]))
            for place, values in enumerate(shared)
        )
        for turn in range(len(each[0]))
    )  # fmt: skip


def _merge(axes: Sequence[Axis], common: Sequence[object], own: Sequence[object]) -> list[object]:
    shared, mine = iter(common), iter(own)
    return [next(mine) if axis.method else next(shared) for axis in axes]


def _join(axes: Sequence[Axis], values: Sequence[object]) -> Setting:
    return {axis.name: value for axis, value in zip(axes, values, strict=True)}


def _draw(axes: Sequence[Axis], method: str, place: int, seed: int) -> Setting:
    def rng(axis: Axis) -> random.Random:
        return random.Random(seeds.derive(seed, f"tune/{method if axis.method else ''}/{axis.path}", place))

    return {axis.name: axis.draw(rng(axis)) for axis in axes}


def make_search(kind: Kind, axes: Sequence[Axis], method: str, budget: int, rounds: int, seed: int) -> Search:
    """The search of one method; `budget` is in whole runs of all rounds."""
    if kind == "optuna":
        from unskew.runs.tuning.optuna_search import OptunaSearch  # an extra

        return OptunaSearch(axes, method, budget, rounds, seed)
    if kind == "grid" and count_settings(axes) is None:
        raise InputError("--search grid tries listed values, and --grid has a range; list values, or --search random")
    number = count_halved(budget, rounds) if kind == "halving" else budget
    make: Callable[[Sequence[Setting], int], Search] = Halving if kind == "halving" else Listed
    return make(list_settings(axes, method, number, seed), rounds)
