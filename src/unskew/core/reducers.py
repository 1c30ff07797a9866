"""How the server merges one group of the replies: fed reply by reply, in the sampled order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from unskew.base.errors import InputError
from unskew.base.naming import check_hooks
from unskew.base.torch_private import add_in_place
from unskew.base.tree import Tree

if TYPE_CHECKING:
    from unskew.core.context import ServerContext
    from unskew.core.jobs import Reply


class Reducer:
    """Merges one group of the replies of a round; weights are the round's, the same for every group."""

    averages: ClassVar[bool] = False
    """Whether the merged value is a mean of what clients send: such groups may be clipped, quantised, made sparse."""
    alike: ClassVar[int | None] = None
    """From which dimension on clients must send the same shape, and the same type; None: they may differ."""

    def __init_subclass__(cls) -> None:
        """Refuses names that are nearly those of hooks."""
        check_hooks(cls)

    def __init__(self, s: ServerContext) -> None:
        """Called at the beginning of each round."""

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree; `reply` has its weight, number of samples and other groups."""
        raise TypeError(f"reducer {type(self).__name__} must define add(value, reply)")

    def add_stack(self, value: Tree, replies: Sequence[Reply]) -> None:
        """Takes in the trees of many clients at once, [K, ...]; their other groups are in `replies[0].stack.groups`."""
        for place, reply in enumerate(replies):
            self.add({name: tensor[place] for name, tensor in value.items()}, reply)

    def result(self) -> Any:
        """The merged value; an empty tree if no client replied."""
        raise TypeError(f"reducer {type(self).__name__} must define result()")


Reducers = Mapping[str, Any]
"""Name of the merged value → reducer of the group of that name, or (group, reducer) to read another group.

A reducer whose class says `averages = True` gives a mean of the clients' tensors: wire processors (clip, quantise …)
may touch the group that it reads. They never touch sums, counts, joined data or BatchNorm's statistics.
"""


class mean(Reducer):
    """The weighted mean over the clients that sent the name; of integers and booleans, in single precision."""

    averages = True
    alike = 0

    def __init__(self, s: ServerContext) -> None:
        self._sum: Tree = {}
        self._narrow: dict[str, torch.dtype] = {}
        self._weight = 0.0
        self._without: dict[str, float] = {}
        """Weight of the replies in which a name was missing."""

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        if value.keys() == self._sum.keys():
            add_in_place([self._sum[name] for name in value], list(value.values()), alpha=reply.weight)
        else:
            wide = _widen(value, self._narrow, torch.float32)
            self._add_some({name: tensor * reply.weight for name, tensor in wide.items()}, reply.weight)
        self._weight += reply.weight

    def add_stack(self, value: Tree, replies: Sequence[Reply]) -> None:
        """Takes in the trees of many clients at once, [K, ...]."""
        weights = [reply.weight for reply in replies]
        exact, wide = torch.tensor(weights, dtype=torch.float64), _widen(value, self._narrow, torch.float32)
        by = {dtype: exact.to(dtype) for dtype in {v.dtype for v in wide.values()}}
        sums = {name: (by[v.dtype] @ v.reshape(len(exact), -1)).view(v.shape[1:]) for name, v in wide.items()}
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
        means = {name: value / weights[name] for name, value in self._sum.items() if weights[name] > 0}
        return _narrow(means, self._narrow)


class total(Reducer):
    """The plain sum, each client counting once; of integers and booleans, in 64 bits."""

    alike = 0

    def __init__(self, s: ServerContext) -> None:
        self._sum: Tree = {}
        self._narrow: dict[str, torch.dtype] = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        for name, tensor in _widen(value, self._narrow, torch.int64).items():
            self._sum[name] = self._sum[name].add_(tensor) if name in self._sum else tensor.clone()

    def add_stack(self, value: Tree, replies: Sequence[Reply]) -> None:
        """Takes in the trees of many clients at once, [K, ...]."""
        for name, tensor in _widen(value, self._narrow, torch.int64).items():
            summed = tensor.sum(0)
            self._sum[name] = self._sum[name].add_(summed) if name in self._sum else summed

    def result(self) -> Tree:
        """The sum."""
        return _narrow(self._sum, self._narrow)


def _widen(value: Tree, narrow: dict[str, torch.dtype], counts: torch.dtype) -> Tree:
    """The tree as it is added up: half precision in single, what is no real number as `counts`.

    Sums of small types would overflow. What is to be half precision again is noted in `narrow`.
    """
    if all(tensor.dtype in _WIDE for tensor in value.values()):
        return value
    narrow |= {name: tensor.dtype for name, tensor in value.items() if tensor.dtype in _HALF}
    to = dict.fromkeys(_HALF, torch.float32)
    return {n: v if v.dtype in _WIDE else v.to(to.get(v.dtype, counts)) for n, v in value.items()}


def _narrow(value: Tree, narrow: dict[str, torch.dtype]) -> Tree:
    return {n: v.to(narrow[n]) if n in narrow else v for n, v in value.items()} if narrow else value


_HALF = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)


class mean_over_all_clients(total):
    """The sum over the round's clients divided by the number of all clients: absent ones count as zero."""

    averages = True

    def __init__(self, s: ServerContext) -> None:
        super().__init__(s)
        self._clients = s.num_clients

    def result(self) -> Tree:
        """The sum over all clients."""
        return _narrow({name: value / self._clients for name, value in self._sum.items()}, self._narrow)


class buffers(mean):
    """BatchNorm's statistics: floating ones by weighted mean; counters, which have no mean, by maximum.

    So positions and other constants stay as they are, and a mask is on where any client has it on.
    """

    averages = False  # statistics: a variance must not be clipped

    def __init__(self, s: ServerContext) -> None:
        super().__init__(s)
        self._largest: Tree = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's buffers."""
        for name, tensor in value.items():
            if not tensor.is_floating_point():
                self._largest[name] = torch.maximum(self._largest.get(name, tensor), tensor)
        if floating := {name: tensor for name, tensor in value.items() if tensor.is_floating_point()}:
            super().add(floating, reply)

    def add_stack(self, value: Tree, replies: Sequence[Reply]) -> None:
        """Takes in the buffers of many clients at once, [K, ...]."""
        for name, tensor in value.items():
            if not tensor.is_floating_point():
                self._largest[name] = torch.maximum(self._largest.get(name, tensor[0]), tensor.amax(0))
        if floating := {name: tensor for name, tensor in value.items() if tensor.is_floating_point()}:
            super().add_stack(floating, replies)

    def result(self) -> Tree:
        """Means and maxima together."""
        return {**super().result(), **self._largest}


class concat(Reducer):
    """Tensors of all clients joined along the first dimension: condensed data, replies of different size."""

    alike = 1

    def __init__(self, s: ServerContext) -> None:
        self._parts: dict[str, list[torch.Tensor]] = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        for name, tensor in value.items():
            self._parts.setdefault(name, []).append(tensor)

    def result(self) -> Tree:
        """The joined tensors, clients in the sampled order."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}


class per_client(Reducer):
    """Every client's tree and weight, kept apart: for methods that compare or combine clients one by one."""

    def __init__(self, s: ServerContext) -> None:
        self._replies: dict[int, tuple[Tree, float]] = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        self._replies[reply.client] = (value, reply.weight)

    def result(self) -> dict[int, tuple[Tree, float]]:
        """Client → (tree, weight), in the sampled order."""
        return self._replies


def check_reducers(method: str, reducers: Reducers) -> None:
    """Refuses what is no reducer before the round in which it would fail."""
    for name, how in reducers.items():
        kind = how[1] if isinstance(how, tuple) else how
        made = getattr(kind, "func", kind)  # a partial of a class
        if not (isinstance(made, type) and issubclass(made, Reducer)):
            raise InputError(
                f"{method}: the reducer of '{name}' must be a subclass of unskew.reducers.Reducer, got {kind!r}"
            )
        if made.alike is not None and (type(made.alike) is not int or made.alike not in (0, 1)):
            raise InputError(f"{made.__name__}.alike must be None, 0 (shapes are the same) or 1 (but for the first "
                             f"dimension), got {made.alike!r}")  # fmt: skip
