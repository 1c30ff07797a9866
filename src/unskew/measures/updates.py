"""What measures of the clients' updates share: the reducer that keeps the updates of a round, and a base class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from unskew.base.tree import Tree
from unskew.core.reducers import Reducer, Reducers
from unskew.measures.base import Absent, Figures, Look, Measure

if TYPE_CHECKING:
    from unskew.core.context import ServerContext
    from unskew.core.jobs import Reply

_BLOCK = 1 << 22
"""Numbers that are looked at together: float64 of all updates at once would double their memory."""


class Updates(Reducer):
    """A reducer that keeps the updates of all clients; a name that a client did not send counts as not moved."""

    def __init__(self, s: ServerContext) -> None:
        self._parts: list[tuple[int, Tree]] = []
        self.clients = 0

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's update."""
        self.add_stack({name: tensor.unsqueeze(0) for name, tensor in value.items()}, [reply])

    def add_stack(self, value: Tree, replies: Sequence[Reply]) -> None:
        """Takes in the updates of many clients at once, [K, ...]."""
        self._parts.append((len(replies), value))
        self.clients += len(replies)

    def result(self) -> Updates:
        """The updates."""
        return self

    def blocks(self) -> Iterator[Tensor]:
        """All updates side by side, [m, some columns] float64, block after block."""
        width = max(1, _BLOCK // max(1, self.clients))
        for name, like in {name: value for _, tree in self._parts for name, value in tree.items()}.items():
            size = like[0].numel()
            for start in range(0, size, width):
                columns = slice(start, min(start + width, size))
                yield torch.cat([self._columns(count, own.get(name), columns) for count, own in self._parts])

    @staticmethod
    def _columns(count: int, value: Tensor | None, columns: slice) -> Tensor:
        if value is None:
            return torch.zeros(count, columns.stop - columns.start, dtype=torch.float64)
        return value.reshape(count, -1)[:, columns].double()


class UpdateMeasure(Measure):
    """A measure of the group `delta` of the replies."""

    reducer: ClassVar[Any] = Updates

    def reducers(self) -> Reducers:
        """Sees every client's `delta`."""
        return {f"{self.name}/delta": ("delta", self.reducer)}

    def figures(self, look: Look) -> Figures:
        """The round's figures; none in a round without a usable reply."""
        if not look.replied:
            return {}
        updates: Any = look.observed[f"{self.name}/delta"]
        if not updates.clients:
            raise Absent(f"{look.task.method.name}'s clients send no differences of parameters (group delta)")
        return self.measure(updates)

    def measure(self, updates: Any) -> Figures:
        """The figures of what the reducer collected."""
        raise TypeError(f"{type(self).__name__} must define measure(updates)")
