"""The one way to observe a run: an object with a hook for each place where there is something to see.

A measure, a progress bar and a user's function that is called after every round are observers. Hooks at the client run
where the client works (in another process, or for many clients at once); what they want to keep they note in
`c.diagnostics`, which travels with the reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from unskew.base.errors import InputError
from unskew.base.tree import Tree

if TYPE_CHECKING:
    from unskew.base.batch import Batch
    from unskew.core.reducers import Reducers

Row = dict[str, Any]


class Observer:
    """Looks on and changes nothing; each hook's default sees nothing."""

    asides: ClassVar[bool] = False
    """Whether it also sees steps that are not counted (`c.aside`)."""

    def before_step(self, c: Any, params: Tree, batch: Batch) -> None:
        """At the client: the direction of a local step is about to be computed at these parameters."""

    def step(self, c: Any, params: Tree, batch: Batch, grads: Tree) -> None:
        """At the client: a local step is about to be made along `grads`."""

    def trained(self, c: Any, params: Tree) -> None:
        """At the client: local training has ended with these parameters."""

    def reducers(self) -> Reducers:
        """At the server: reducers that see the replies beside the method's own, by names that nobody else uses."""
        return {}

    def finished(self, row: Row) -> None:
        """At the server: a round is finished, this is its row."""

    @property
    def sees_clients(self) -> bool:
        """Whether any of its hooks is at the client."""
        hooks = ("before_step", "step", "trained")
        return any(getattr(type(self), hook) is not getattr(Observer, hook) for hook in hooks)


class Callback(Observer):
    """A function that is called with every finished round's row."""

    def __init__(self, function: Callable[[Row], None]) -> None:
        self._function = function

    def finished(self, row: Row) -> None:
        """Calls the function."""
        self._function(row)


def as_observer(watch: Observer | Callable[[Row], None]) -> Observer:
    """An observer as it is; a function becomes one."""
    if isinstance(watch, Observer):
        return watch
    if not callable(watch):
        raise InputError(f"watch: expected a function of a round's row or an Observer, got {watch!r}")
    return Callback(watch)
