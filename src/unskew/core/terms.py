"""Loss terms: small frozen components, called `term(c, params, batch, out)` and added to the method's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from unskew.core.registry import Component, Registry
from unskew.core.tree import Tree
from unskew.models.base import Output

if TYPE_CHECKING:
    from unskew.core.context import ClientContext
    from unskew.data.local import Batch


class Term(Component):
    """One extra loss; `out` is the batch's shared forward pass."""

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The term's value, a scalar."""
        raise TypeError(f"{type(self).__name__} must define __call__(c, params, batch, out)")


terms: Registry[Term] = Registry("term", Term)
