"""What FedSOL asks of the method inside it, and which part of that method becomes proximal."""

from __future__ import annotations

from typing import NamedTuple

from unskew.base.errors import InputError
from unskew.core.method import Method
from unskew.core.slots import overrides
from unskew.core.term import Term


class Parts(NamedTuple):
    """The terms of a method's loss, split at what is proximal."""

    proximal: tuple[Term, ...]
    """Proximal terms that make the method: what gives g_p."""
    local: tuple[Term, ...]
    """All others, and every term that a user added: they stay in the local loss."""


def split_terms(method: Method) -> Parts:
    """The inner method's terms; its own ones come first in `loss_terms`."""
    own = method.own_terms()
    added = method.loss_terms()[len(own) :]
    proximal = tuple(term for term in own if term.proximal)
    return Parts(proximal, (*(term for term in own if not term.proximal), *added))


def check_inner(outer: str, method: Method) -> None:
    """Refuses a method whose steps are more than the gradient of a loss and a correction: the rest would be lost."""
    if overrides(method, "train"):
        raise InputError(f"{outer} needs a method inside that trains by plain SGD; {method} has its own training")
    if overrides(method, "gradient"):
        raise InputError(f"{outer} would leave out what {method} does to its gradient; put another method inside")
