"""The squared distance to the received model, without a strength of its own: for methods that use its direction."""

from __future__ import annotations

from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms


@terms.register("l2")
class L2(Term):
    """(1/2) ||w - w_g||^2 over the trained parameters; w_g: what the visit started from, the client's part included."""

    proximal = True

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """Half the squared distance."""
        received = tree.select(c.received["model"], c.trainable)
        return 0.5 * tree.sqdist(tree.select(params, received), received)
