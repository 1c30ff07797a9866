"""Measures of the clients' updates of a round: drift, divergence, agreement layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from unskew.base.tree import Tree
from unskew.core.reducers import Reducers
from unskew.measures.base import Absent, Figures, Look, Measure, measures
from unskew.methods.flfa.selection import similarity, skewness

if TYPE_CHECKING:
    from unskew.core.context import ServerContext
    from unskew.core.jobs import Reply

_BLOCK = 1 << 22
"""Numbers that are looked at together: float64 of all updates at once would double their memory."""


class Updates:
    """A reducer that keeps the updates of all clients; a name that a client did not send counts as not moved."""

    def __init__(self, s: ServerContext) -> None:
        self._parts: list[tuple[int, Tree]] = []
        self.clients = 0

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's update."""
        self.add_stack({name: tensor.unsqueeze(0) for name, tensor in value.items()}, [reply.weight])

    def add_stack(self, value: Tree, weights: list[float]) -> None:
        """Takes in the updates of many clients at once, [K, ...]."""
        self._parts.append((len(weights), value))
        self.clients += len(weights)

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


def local_drift(updates: Updates) -> float:
    """H = (1/m) sum_k |Delta_k - mean Delta|, unweighted, parameters only (FLFA, eq. 59)."""
    squares = torch.zeros(updates.clients, dtype=torch.float64)
    for block in updates.blocks():
        squares += (block - block.mean(0)).square().sum(1)
    return float(squares.sqrt().mean())


def weight_divergence(updates: Updates) -> tuple[float, float | None]:
    """The mean of |w_g - w_k| over clients, and of |w_i - w_j| over pairs of them (FedSOL, Fig. 6)."""
    m = updates.clients
    gram, squares = torch.zeros(m, m, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    for block in updates.blocks():
        squares += block.square().sum(1)
        centred = block - block.mean(0)  # distances stay, and less is cancelled below
        gram += centred @ centred.T
    own = gram.diagonal()
    between = (own[:, None] + own[None, :] - 2 * gram).clamp(min=0).sqrt()
    pairs = between[tuple(torch.triu_indices(m, m, 1))]
    return float(squares.sqrt().mean()), float(pairs.mean()) if len(pairs) else None


class _OfUpdates(Measure):
    """A measure of the group `delta` of the replies."""

    reducer: ClassVar[Any] = Updates

    def watching(self) -> Reducers:
        """Sees every client's `delta`."""
        return {"delta": ("delta", self.reducer)}

    def figures(self, look: Look) -> Figures:
        """The round's figures; none in a round without a usable reply."""
        if not look.replied:
            return {}
        found: Any = look.watched[f"{self.name}/delta"]
        if not found.clients:
            raise Absent(f"{look.task.method.name}'s clients send no differences of parameters (group delta)")
        return self.of(found)

    def of(self, found: Any) -> Figures:
        """The figures of what the reducer found."""
        raise TypeError(f"{type(self).__name__} must define of(found)")


@measures.register("drift")
class Drift(_OfUpdates):
    """Local drift H: mean over clients of |Delta_k - mean Delta|, unweighted, parameters that travel (FLFA, eq. 59)."""

    def of(self, found: Updates) -> Figures:
        """`drift`."""
        return {"drift": local_drift(found)}


@measures.register("divergence")
class Divergence(_OfUpdates):
    """Weight divergence: mean |w_g - w_k| to the received model, and mean |w_i - w_j| over pairs (FedSOL, Fig. 6)."""

    def of(self, found: Updates) -> Figures:
        """`divergence` and `divergence_mutual`."""
        to_global, mutual = weight_divergence(found)
        return {"divergence": to_global, "divergence_mutual": mutual}


@measures.register("similarity")
class Similarity(_OfUpdates):
    """Layer similarity z: mean cosine of the clients' updates to their mean, per layer, and its skewness (FLFA)."""

    reducer: ClassVar[Any] = similarity

    def of(self, found: similarity) -> Figures:
        """`similarity` (layer → z), `similarity_mean` and `similarity_skewness`."""
        z = {layer: float(value) for layer, value in found.result().items()}
        if not z:
            return {}
        values = list(z.values())
        return {"similarity": z, "similarity_mean": sum(values) / len(values), "similarity_skewness": skewness(values)}
