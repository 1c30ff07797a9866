"""How near `stacked` comes to `serial`: what each part of a run promises, and what follows for the whole.

The figure is the distance between the two models as a share of the distance that `serial` moved. Both do the same
arithmetic, but take sums in another order, and training amplifies rounding; how much depends on the method.
`python -m benchmarks.stacked_tolerance` measures it, docs/design.md has the figures, tests/contract holds the promises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from unskew.base.errors import InputError

if TYPE_CHECKING:
    from unskew.core.method import Method

USUAL = 1e-3
"""What a part promises that says nothing else; typical is 1e-6.

Rounding can turn a ReLU or a max-pool, whose gradients jump: 7 of 2,144 measured runs lay above it, at most at 0.011.
"""
NONE = math.inf
"""No promise: rounding grows from step to step until the models have little in common."""


class Part(Protocol):
    """A method, a term or a wire processor."""

    @property
    def stacked_tolerance(self) -> float:
        """What it promises."""


def find_tolerance(method: Method, wire: Iterable[Part] = ()) -> float:
    """What is promised for a run of the method with these wire processors: the worst of all parts.

    0 where clients cannot be stacked: they work one by one, as `serial` lets them.
    """
    from unskew.core.wrapper import walk_nested  # the base class of methods needs this file

    if not method.stackable:
        return 0.0
    parts: list[Part] = [*walk_nested(method), *method.used_terms(), *wire]
    return max(_read(part) for part in parts)


def _read(part: Part) -> float:
    found = part.stacked_tolerance
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not found >= 0:
        raise InputError(
            f"{type(part).__name__}: stacked_tolerance must be a number from 0 upwards, such as {USUAL}, got {found!r}"
        )
    return float(found)


def describe(tolerance: float) -> str:
    """What to expect of `stacked`, in words."""
    if tolerance == 0:
        return "the bits of serial: its clients work one by one"
    if tolerance == NONE:
        return "no bound to the distance from serial: rounding grows from step to step"
    turned = ", but for a ReLU or max-pool that rounding turns" if tolerance <= USUAL else ""
    return f"within {tolerance:.2g} of the distance moved from serial{turned}"
