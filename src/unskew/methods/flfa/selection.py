"""Which layers get feedback: by how alike the clients' updates are, layer by layer (eq. 14), and by their skewness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unskew.base.tree import Tree
from unskew.core.reducers import Reducer

if TYPE_CHECKING:
    from unskew.core.context import ServerContext
    from unskew.core.jobs import Reply

EQUAL = 12
"""Decimals: what differs by less is equal."""


class similarity(Reducer):
    """z^l = (1/m) sum_k cos(g_k^l, mean g^l) of every trained Conv2d and Linear weight; zero vectors count 0.

    The mean cosine is the product of the mean direction with the mean update's direction, so two sums are enough
    and no update is kept. They are of double precision: equal layers, such as those of a single client, stay equal.
    """

    def __init__(self, s: ServerContext) -> None:
        weights = {f"{layer}.weight": layer for layer in s.names.layers}
        self._layers = {name: weights[name] for name in s.trainable if name in weights}
        self._sums: Tree = {}
        self._directions: Tree = {}
        self.clients = 0

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's update."""
        self.add_stack({name: tensor.unsqueeze(0) for name, tensor in value.items() if name in self._layers}, [reply])

    def add_stack(self, value: Tree, replies: Sequence[Reply]) -> None:
        """Takes in the updates of many clients at once, [K, ...]."""
        for name in self._layers:
            if name in value:
                each = value[name].flatten(1).double()
                norms = torch.linalg.vector_norm(each, dim=1)
                _add_to(self._sums, name, each.sum(0))
                _add_to(self._directions, name, torch.where(norms > 0, 1 / norms, 0.0) @ each)
        self.clients += len(replies)

    def result(self) -> Tree:
        """Layer → z^l, in the model's order."""
        found: Tree = {}
        for name, total in self._sums.items():
            norm = torch.linalg.vector_norm(total)
            cosine = self._directions[name] @ total / (norm * self.clients)
            found[self._layers[name]] = torch.where(norm > 0, cosine, 0.0)
        return found


def _add_to(sums: Tree, name: str, value: Tensor) -> None:
    sums[name] = sums[name].add_(value) if name in sums else value


def skewness(values: list[float]) -> float:
    """g1 = m3 / m2^1.5; 0 where all values are equal, and where it is rounding (two values are never skewed)."""
    z = torch.tensor(values, dtype=torch.float64)
    if len(z) == 0 or float(z.max() - z.min()) <= 10.0**-EQUAL:
        return 0.0
    apart = z - z.mean()
    found = float(apart.pow(3).mean() / apart.square().mean().pow(1.5))
    return found if abs(found) > 10.0**-EQUAL else 0.0


def lowest(values: dict[str, float], count: int) -> list[str]:
    """The names of the `count` smallest values, ascending; of equal ones the first."""
    return sorted(values, key=lambda name: round(values[name], EQUAL))[:count]


def highest(values: dict[str, float], count: int) -> list[str]:
    """The names of the `count` largest values, descending; of equal ones the first."""
    return sorted(values, key=lambda name: -round(values[name], EQUAL))[:count]


RULES = {"lowest": lowest, "highest": highest}


def decide_rule(z: dict[str, float]) -> str:
    """`auto` (Sec. 13.2): lowest similarity where most layers have a low one (skewness above 0), else highest."""
    return "lowest" if skewness(list(z.values())) > 0 else "highest"
