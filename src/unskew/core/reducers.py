"""How the server merges one group of the replies: fed reply by reply, in the sampled order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from unskew.base.torch_private import add_in_place
from unskew.base.tree import Tree

if TYPE_CHECKING:
    from unskew.core.context import ServerContext
    from unskew.core.jobs import Reply


class Reducer(Protocol):
    """Merges one group of the replies of a round."""

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree; `reply` has its weight, number of samples and other groups."""

    def result(self) -> Any:
        """The merged value; an empty tree if no client replied."""


Reducers = Mapping[str, Any]
"""Name of the merged value → reducer of the group of that name, or (group, reducer) to read another group.

A reducer whose class says `averages = True` gives a mean of the clients' tensors: wire processors (clip, quantise …)
may touch the group that it reads. They never touch sums, counts, joined data or BatchNorm's statistics.
"""


class mean:
    """The weighted mean over the clients that sent the name."""

    averages: ClassVar[bool] = True

    def __init__(self, s: ServerContext) -> None:
        self._sum: Tree = {}
        self._weight = 0.0
        self._without: dict[str, float] = {}
        """Weight of the replies in which a name was missing."""

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        if value.keys() == self._sum.keys():
            add_in_place([self._sum[name] for name in value], list(value.values()), alpha=reply.weight)
        else:
            self._add_some({name: tensor * reply.weight for name, tensor in value.items()}, reply.weight)
        self._weight += reply.weight

    def add_stack(self, value: Tree, weights: list[float]) -> None:
        """Takes in the trees of many clients at once, [K, ...]."""
        by = torch.tensor(weights)
        sums = {name: (by.to(v.dtype) @ v.reshape(len(by), -1)).view(v.shape[1:]) for name, v in value.items()}
        whole = sum(weights)
        if sums.keys() == self._sum.keys():
            add_in_place([self._sum[name] for name in sums], list(sums.values()))
        else:
            self._add_some(sums, whole)
        self._weight += whole

    def _add_some(self, weighted: Tree, weight: float) -> None:
        for name in self._sum.keys() - weighted.keys():
            self._without[name] = self._without.get(name, 0.0) + weight
        for name, tensor in weighted.items():
            if name in self._sum:
                self._sum[name].add_(tensor)
            else:
                self._sum[name] = tensor
                if self._weight:
                    self._without[name] = self._weight

    def result(self) -> Tree:
        """The sum divided by the weights; names with no weight at all are left out."""
        weights = {name: self._weight - self._without.get(name, 0.0) for name in self._sum}
        return {name: value / weights[name] for name, value in self._sum.items() if weights[name] > 0}


class total:
    """The plain sum, each client counting once."""

    averages: ClassVar[bool] = False

    def __init__(self, s: ServerContext) -> None:
        self._sum: Tree = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        for name, tensor in value.items():
            self._sum[name] = self._sum[name].add_(tensor) if name in self._sum else tensor.clone()

    def add_stack(self, value: Tree, weights: list[float]) -> None:
        """Takes in the trees of many clients at once, [K, ...]."""
        for name, tensor in value.items():
            summed = tensor.sum(0)
            self._sum[name] = self._sum[name].add_(summed) if name in self._sum else summed

    def result(self) -> Tree:
        """The sum."""
        return self._sum


class mean_over_all_clients(total):
    """The sum over the round's clients divided by the number of all clients: absent ones count as zero."""

    averages: ClassVar[bool] = True

    def __init__(self, s: ServerContext) -> None:
        super().__init__(s)
        self._clients = s.num_clients

    def result(self) -> Tree:
        """The sum over all clients."""
        return {name: value / self._clients for name, value in self._sum.items()}


class buffers(mean):
    """BatchNorm's statistics: floating ones by weighted mean, counters, which have no mean, by maximum."""

    averages: ClassVar[bool] = False

    def __init__(self, s: ServerContext) -> None:
        super().__init__(s)
        self._largest: Tree = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's buffers."""
        for name, tensor in value.items():
            if not tensor.is_floating_point():
                self._largest[name] = torch.maximum(self._largest.get(name, tensor), tensor)
        super().add({name: tensor for name, tensor in value.items() if tensor.is_floating_point()}, reply)

    def add_stack(self, value: Tree, weights: list[float]) -> None:
        """Takes in the buffers of many clients at once, [K, ...]."""
        for name, tensor in value.items():
            if not tensor.is_floating_point():
                self._largest[name] = torch.maximum(self._largest.get(name, tensor[0]), tensor.amax(0))
        super().add_stack({name: tensor for name, tensor in value.items() if tensor.is_floating_point()}, weights)

    def result(self) -> Tree:
        """Means and maxima together."""
        return {**super().result(), **self._largest}


class concat:
    """Tensors of all clients joined along the first dimension: condensed data, replies of different size."""

    averages: ClassVar[bool] = False

    def __init__(self, s: ServerContext) -> None:
        self._parts: dict[str, list[torch.Tensor]] = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        for name, tensor in value.items():
            self._parts.setdefault(name, []).append(tensor)

    def result(self) -> Tree:
        """The joined tensors, clients in the sampled order."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}


class per_client:
    """Every client's tree and weight, kept apart: for methods that compare or combine clients one by one."""

    averages: ClassVar[bool] = False

    def __init__(self, s: ServerContext) -> None:
        self._replies: dict[int, tuple[Tree, float]] = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        self._replies[reply.client] = (value, reply.weight)

    def result(self) -> dict[int, tuple[Tree, float]]:
        """Client → (tree, weight), in the sampled order."""
        return self._replies
