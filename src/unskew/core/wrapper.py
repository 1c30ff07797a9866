"""A wrapper is a method with a method inside it; every slot it does not change is the inner method's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from unskew.base.errors import DeclarationError
from unskew.base.registry import param, validated
from unskew.base.tree import Tree
from unskew.core.context import ClientContext, Context
from unskew.core.method import Method
from unskew.core.slots import DECLARATIONS, NAMES
from unskew.core.term import Term


@validated
class Wrapper(Method):
    """Forwards every slot and declaration to `inner`; its own `terms` join the loss of the method inside."""

    inner: Method = param(doc="the method inside")

    def __init_subclass__(cls) -> None:
        """Refuses slots that would never be called: the inner method's `train` calls its own."""
        super().__init_subclass__()
        dead = {"criterion", "own_terms", "loss", "correction", "gradient"} & vars(cls).keys()
        if dead and "train" not in vars(cls):
            raise DeclarationError(
                f"wrapper {cls.__name__} defines {sorted(dead)}, which the method inside never calls; "
                "change the context in `prepare`, or define `train` too"
            )

    def shared(self, context: Context, params: Tree) -> Tree:
        """The inner method's."""
        return self.inner.shared(context, params)

    def receive(self, c: ClientContext) -> Tree:
        """The inner method's."""
        return self.inner.receive(c)

    def loss_terms(self) -> tuple[Term, ...]:
        """The inner method's and this wrapper's."""
        return (*self.inner.loss_terms(), *self.terms)

    def used_terms(self) -> tuple[Term, ...]:
        """The inner method's and this wrapper's."""
        return (*self.inner.used_terms(), *self.terms)


def _call_inner(name: str) -> Callable[..., Any]:
    def call(self: Wrapper, *args: Any) -> Any:
        return getattr(self.inner, name)(*args)

    call.__name__, call.__doc__ = name, "The inner method's."
    return call


def _read_inner(name: str) -> Any:
    return property(lambda self: getattr(self.inner, name), doc=f"The inner method's `{name}`.")


for _name in NAMES:
    setattr(Wrapper, _name, _call_inner(_name))
for _name in DECLARATIONS:
    setattr(Wrapper, _name, _read_inner(_name))


def walk_nested(method: Method) -> Iterator[Method]:
    """The method, the one inside it, and so on inwards."""
    yield method
    if isinstance(method, Wrapper):
        yield from walk_nested(method.inner)
