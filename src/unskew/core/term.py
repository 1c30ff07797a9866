"""Loss terms: small frozen components, called `term(c, params, batch, out)` and added to the method's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from unskew.base.batch import Output
from unskew.base.registry import Component, Registry
from unskew.base.tree import Tree

if TYPE_CHECKING:
    from unskew.base.batch import Batch
    from unskew.core.context import ClientContext


class Term(Component):
    """One extra loss; `out` is the batch's shared forward pass."""

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The term's value, a scalar."""
        raise TypeError(f"{type(self).__name__} must define __call__(c, params, batch, out)")


terms: Registry[Term] = Registry("term", Term)
