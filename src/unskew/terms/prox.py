"""The proximal term of FedProx."""

from __future__ import annotations

from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms


@terms.register("prox")
class Prox(Term):
    """(mu/2) ||w - w^t||^2: the squared distance of the trained parameters to those that the visit started from."""

    proximal = True

    mu: float = param(default=0.01, ge=0, doc="strength", source="FedBlade's experiments")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """Half mu times the squared distance."""
        received = tree.select(c.received["model"], c.trainable)
        return 0.5 * self.mu * tree.sqdist(tree.select(params, received), received)
