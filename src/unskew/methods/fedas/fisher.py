"""FedAS, eq. 5-8: the trace of a client's Fisher information, the weights made of it, and means by these weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, cross_entropy
from unskew.base.torch_private import add_in_place, scale_in_place
from unskew.base.tree import Tree
from unskew.core.context import ClientContext

if TYPE_CHECKING:
    from unskew.core.context import ServerContext
    from unskew.core.jobs import Reply

Fisher = Literal["batch", "full", "per_sample"]
Rule = Literal["proportional", "softmax", "minmax"]
UNKNOWN = -1.0
"""Sent for a trace that is not finite; every true one is at least 0."""
_AT_ONCE = 16
"""Samples whose own gradients are held at once."""


# ------------------------------------------------------------------------------------------ at the client


def fisher_trace(c: ClientContext, params: Tree, kind: Fisher) -> Tensor:
    """The squared norm of the gradient of -log p at `params`, in evaluation mode, over all samples of the client.

    `batch`: summed over mini-batches of their mean gradients; `full`: of the one mean gradient; `per_sample`: the mean
    over samples of each one's.
    """
    with torch.no_grad():
        found = {"batch": _of_batches, "full": _of_all, "per_sample": _of_samples}[kind](c, params)
    return torch.where(torch.isfinite(found), found, UNKNOWN)


def _of_batches(c: ClientContext, params: Tree) -> Tensor:
    parts = [tree.sqnorm(_gradient(c, params, batch)) for batch in c.passes(c.settings.batch)]
    return torch.stack(parts).sum()


def _of_all(c: ClientContext, params: Tree) -> Tensor:
    whole: Tree | None = None
    for batch in c.passes():
        share = batch.one_hot(c.num_classes).sum() / c.num_samples  # the batch's real samples
        own = tree.scale(_gradient(c, params, batch), share.to(next(iter(params.values())).dtype))
        whole = own if whole is None else tree.add(whole, own)
    return tree.sqnorm(whole or {})


def _gradient(c: ClientContext, params: Tree, batch: Batch) -> Tree:
    return c.grad(lambda p: batch.cross_entropy(c.forward(p, batch.x, "eval").logits), params)


def _of_samples(c: ClientContext, params: Tree) -> Tensor:
    fixed = tree.without(params, c.trainable)

    def squared(x: Tensor, y: Tensor) -> Tensor:
        def loss(p: Tree) -> Tensor:
            return cross_entropy(c.forward({**fixed, **p}, x.unsqueeze(0), "eval").logits, y.unsqueeze(0)).sum()

        return tree.sqnorm(torch.func.grad(loss)(tree.select(params, c.trainable)))

    total: Tensor | float = 0.0
    for batch in c.passes():
        each = torch.func.vmap(squared, chunk_size=_AT_ONCE)(batch.x, batch.y)
        total = total + (batch.one_hot(c.num_classes).to(each.dtype).T @ each).sum()
    return torch.as_tensor(total) / c.num_samples.clamp(min=1)


# ------------------------------------------------------------------------------------------ at the server


def shares(traces: Sequence[float], sizes: Sequence[float], rule: Rule) -> list[float]:
    """alpha'_i (eq. 7): the clients' weights, which sum to 1.

    They are the sample counts where a trace is unknown, and with `proportional` where all are 0.
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

    def __init__(self, s: ServerContext | None, rule: Rule = "proportional", by_number: bool = False) -> None:
        super().__init__(s, rule)
        self.by_number = by_number
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
        """The weighted mean; with `by_number` divided by the number of clients once more (eq. 8 as printed)."""
        if not self._traces:
            return {}
        merged = self._merged()
        return tree.scale(merged, 1 / len(self._traces)) if self.by_number else merged

    def _merged(self) -> Tree:
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
