"""What FedSOL asks of the method inside it: that its steps are a supervised and a proximal gradient, and no more."""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.core.method import Method
from unskew.core.wrapper import Wrapper, walk_nested


def innermost(method: Method) -> Method:
    """The method inside all wrappers."""
    *_, inside = walk_nested(method)
    return inside


def overrides(method: Method, slot: str) -> bool:
    """Whether a method, or a wrapper around it, has a slot of its own instead of the default."""
    default = getattr(Wrapper if isinstance(method, Wrapper) else Method, slot)
    own = getattr(type(method), slot) is not default
    return own or (isinstance(method, Wrapper) and overrides(method.inner, slot))


def check_inner(outer: str, method: Method) -> None:
    """Refuses a method whose steps are more than supervised plus proximal gradient: the rest would be left out."""
    if overrides(method, "train"):
        raise InputError(f"{outer} needs a method inside that trains by plain SGD; {method} has its own training")
    if not overrides(method, "proximal") and (overrides(method, "gradient") or overrides(method, "loss")):
        raise InputError(f"{outer} would leave out what {method} does to its gradient; put another method inside")
