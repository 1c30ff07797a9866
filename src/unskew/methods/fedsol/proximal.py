"""A method's two parts apart: the supervised loss, and the proximal gradient that holds it to the received model.

For methods around other methods that treat the two differently (FedSOL), and for whoever measures one of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.method import Method
from unskew.core.term import Term
from unskew.core.wrapper import Wrapper, walk_nested
from unskew.methods.fedsol.perturb import calm

See = Callable[[Tree], Output]
"""A pass over a batch with these parameters."""


def innermost(method: Method) -> Method:
    """The method inside all wrappers."""
    *_, inside = walk_nested(method)
    return inside


def overrides(method: Method, slot: str) -> bool:
    """Whether a method, or a wrapper around it, has a slot of its own instead of the default."""
    default = getattr(Wrapper if isinstance(method, Wrapper) else Method, slot)
    own = getattr(type(method), slot) is not default
    return own or (isinstance(method, Wrapper) and overrides(method.inner, slot))


def supervised(method: Method, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
    """The method's criterion and the terms that the user added, without the terms that make the method."""
    value = method.criterion(c, out, batch)
    for term in (*innermost(method).terms, *c.terms):
        value = value + term(c, params, batch, out)
    return value


def proximal_gradient(
    method: Method,
    losses: tuple[Term, ...],
    c: ClientContext,
    params: Tree,
    batch: Batch,
    names: tuple[str, ...],
    see: See,
) -> Tree:
    """The gradient of `losses` together for these names; without losses, what the method adds to its gradients.

    BatchNorm's statistics follow from one pass `see` with these parameters, whatever the method does for itself.
    """
    if losses:

        def value(p: Tree) -> Tensor:
            out = see(p)
            return torch.stack([term(c, p, batch, out) for term in losses]).sum()

        return c.grad(value, params, names)
    if c.has_batchnorm:
        with torch.no_grad():
            see(params)
    given = method.proximal(calm(c), params, batch)
    return tree.zeros_like(tree.select(params, names)) if given is None else tree.select(given, names)


def check_plain(outer: str, method: Method) -> None:
    """Refuses a method whose steps are more than supervised plus proximal gradient: the rest would be left out."""
    if overrides(method, "train"):
        raise InputError(f"{outer} needs a method inside that trains by plain SGD; {method} has its own training")
    if not overrides(method, "proximal") and (overrides(method, "gradient") or overrides(method, "loss")):
        raise InputError(f"{outer} would leave out what {method} does to its gradient; put another method inside")
