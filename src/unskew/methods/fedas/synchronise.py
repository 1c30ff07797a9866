"""FedAS, eq. 7-8, client synchronisation: weights made of the Fisher traces, and means by these weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from unskew.base import tree
from unskew.base.torch_private import add_in_place, scale_in_place
from unskew.base.tree import Tree

if TYPE_CHECKING:
    from unskew.core.context import ServerContext
    from unskew.core.jobs import Reply

Rule = Literal["proportional", "softmax", "minmax"]


def shares(traces: Sequence[float], sizes: Sequence[float], rule: Rule) -> list[float]:
    """alpha'_i (eq. 7): the clients' weights, which sum to 1.

    They are the sample counts where a trace is unknown, and with `proportional` where all are 0. `mean_by_trace`
    applies the same rule to running sums.
    """
    if any(value < 0 or not math.isfinite(value) for value in traces):
        return _proportional(sizes)
    least, most = min(traces), max(traces)
    if rule == "softmax":
        return _proportional([math.exp(value - most) for value in traces])
    if rule == "minmax":
        return _proportional([value - least for value in traces])
    # by the largest one first: a sum of huge numbers may overflow
    return _proportional([value / most for value in traces] if most > 0 else sizes)


def _proportional(values: Sequence[float]) -> list[float]:
    whole = sum(values)
    return [value / whole if whole > 0 else 1 / len(values) for value in values]


class _ByTrace:
    """Remembers who sent which trace."""

    def __init__(self, s: ServerContext | None, rule: Rule = "proportional") -> None:
        self.rule = rule
        self._clients: list[int] = []
        self._traces: list[float] = []
        self._sizes: list[float] = []

    def _note(self, reply: Reply) -> float:
        self._clients.append(reply.client)
        self._traces.append(float(reply.groups["fisher"]["trace"]))
        self._sizes.append(reply.weight)
        return self._traces[-1]

    def _weights(self) -> list[float]:
        return shares(self._traces, self._sizes, self.rule) if self._traces else []


class mean_by_trace(_ByTrace):
    """sum_k alpha'_k Delta_k (eq. 8), added up as replies come: no client's model is kept.

    Each rule is a combination of a few sums, chosen when the last reply is in: by samples (the way out if a trace is
    unknown), plain, and by trace. The last one is held relative to the largest trace so far (to the first one for
    `minmax`, which then takes the smallest away), so that it neither overflows nor cancels.
    """

    averages: ClassVar[bool] = True

    def __init__(self, s: ServerContext | None, rule: Rule = "proportional", eq8_literal: bool = False) -> None:
        super().__init__(s, rule)
        self.eq8_literal = eq8_literal
        self._by_samples, self._plain, self._by_trace = _Sum(), _Sum(), _Sum()
        self._most = 0.0

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        found = self._note(reply)
        self._by_samples.add(value, reply.weight)
        if self.rule == "minmax":
            self._plain.add(value, 1.0)
            self._by_trace.add(value, found - self._traces[0])
            return
        most = max(self._most, found)
        self._by_trace.scale(self._relative(self._most, most))
        self._by_trace.add(value, self._relative(found, most))
        self._most = most

    def shares(self) -> dict[int, float]:
        """Each client's weight."""
        return dict(zip(self._clients, self._weights(), strict=True))

    def _relative(self, found: float, most: float) -> float:
        if self.rule == "softmax":
            return math.exp(found - most)
        return found / most if most > 0 else 0.0

    def result(self) -> Tree:
        """The weighted mean; with `eq8_literal` divided by the number of clients once more (eq. 8 as printed)."""
        if not self._traces:
            return {}
        merged = self._merge()
        return tree.scale(merged, 1 / len(self._traces)) if self.eq8_literal else merged

    def _merge(self) -> Tree:
        """sum_i alpha'_i Delta_i by the rule of `shares`."""
        traces, least, most = self._traces, min(self._traces), max(self._traces)
        if least < 0 or (self.rule == "proportional" and most == 0):
            return self._by_samples.over(sum(self._sizes))
        if self.rule != "minmax":
            return self._by_trace.over(sum(self._relative(found, most) for found in traces))
        if most == least:
            return self._plain.over(len(traces))
        self._by_trace.add(self._plain.total, traces[0] - least)
        return self._by_trace.over(sum(found - least for found in traces))


class _Sum:
    """A running weighted sum of trees."""

    def __init__(self) -> None:
        self.total: Tree = {}

    def add(self, value: Tree, factor: float) -> None:
        if not self.total:
            self.total = tree.scale(value, factor)
        else:
            add_in_place([self.total[name] for name in value], list(value.values()), alpha=factor)

    def scale(self, factor: float) -> None:
        if factor != 1 and self.total:
            scale_in_place(list(self.total.values()), factor)

    def over(self, whole: float) -> Tree:
        # no samples at all: nothing moves
        return {name: value / whole for name, value in self.total.items()} if whole > 0 else {}


class buffers_by_trace(_ByTrace):
    """BatchNorm's statistics with the same weights, counters by maximum; small, so they are kept until the end."""

    def __init__(self, s: ServerContext | None, rule: Rule = "proportional") -> None:
        super().__init__(s, rule)
        self._kept: list[Tree] = []

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's buffers."""
        self._note(reply)
        self._kept.append(value)

    def result(self) -> Tree:
        """Means and maxima."""
        if not self._kept:
            return {}
        merged: Tree = {}
        for name, first in self._kept[0].items():
            every = torch.stack([own[name] for own in self._kept])
            if first.is_floating_point():
                by = torch.tensor(self._weights(), dtype=first.dtype, device=first.device)
                merged[name] = (by @ every.reshape(len(by), -1)).view(first.shape)
            else:
                merged[name] = every.amax(0)
        return merged
