"""The one way to observe a run: an object with a hook for each place where there is something to see.

A measure, a progress bar and a user's function that is called after every round are observers. Hooks at the client run
where the client works (in another process, or for many clients at once); what they want to keep they note in
`c.diagnostics`, which travels with the reply.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from unskew.base.errors import InputError
from unskew.base.naming import check_hooks
from unskew.base.process import keep_torch_modes
from unskew.base.tree import Tree
from unskew.core.reducers import Reducers, check_reducers

if TYPE_CHECKING:
    from unskew.base.batch import Batch

Row = dict[str, Any]


class Observer:
    """Looks on and changes nothing; each hook's default sees nothing."""

    asides: ClassVar[bool] = False
    """Whether it also sees steps that are not counted (`c.aside`)."""

    def __init_subclass__(cls) -> None:
        """Refuses names that are nearly those of hooks."""
        super().__init_subclass__()
        check_hooks(cls)

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


def gather_reducers(observers: Sequence[Observer]) -> Reducers:
    """The reducers of all observers; refuses a name that two of them use, whose figures would be one's only."""
    found: dict[str, Any] = {}
    for observer in observers:
        own: Any = observer.reducers()
        if not isinstance(own, Mapping):
            raise InputError(
                f'{type(observer).__name__}.reducers must return a dict such as {{"mine": reducers.mean}}, got {own!r}'
            )
        if twice := sorted(own.keys() & found.keys()):
            raise InputError(
                f"two observers have a reducer '{twice[0]}'; let {type(observer).__name__} name its own otherwise"
            )
        check_reducers(type(observer).__name__, own)
        found.update(own)
    return found


class Callback(Observer):
    """A function that is called with every finished round's row."""

    def __init__(self, function: Callable[[Row], None]) -> None:
        self._function = function

    def finished(self, row: Row) -> None:
        """Calls the function."""
        self._function(row)


def show_row(observer: Observer, row: Row) -> None:
    """Tells an observer of a finished round; what is from outside the package gets a row that it may change."""
    shown = observer._function if isinstance(observer, Callback) else type(observer)
    ours = (getattr(shown, "__module__", None) or "").partition(".")[0] == "unskew"
    if ours:
        observer.finished(row)
        return
    with keep_torch_modes():
        observer.finished(_copy_plain(row))


def _copy_plain(value: Any) -> Any:
    """A copy of what JSON can hold; `copy.deepcopy` takes longer than a tiny client's step."""
    if isinstance(value, dict):
        return {key: _copy_plain(own) if isinstance(own, (dict, list)) else own for key, own in value.items()}
    return [_copy_plain(own) if isinstance(own, (dict, list)) else own for own in value]


def as_observer(watch: Any) -> Observer:
    """An observer as it is; a function of a row becomes one."""
    if isinstance(watch, Observer):
        _check_runs(watch.finished)
        return watch
    if not callable(watch) or (isinstance(watch, type) and issubclass(watch, Observer)):
        raise InputError(
            f"watch: expected a function of a round's row or an Observer (an object, not its class), got {watch!r}"
        )
    _check_runs(watch)
    _check_takes_row(watch)
    return Callback(watch)


def _check_takes_row(function: Any) -> None:
    """Refuses a function that cannot be called with a row alone."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function that does not say what it takes
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise InputError(f"watch: {name} must take one argument, a round's row, got {signature}") from None


def _check_runs(function: Any) -> None:
    """Refuses a function whose call runs nothing of it."""
    for one in (function, vars(type(function)).get("__call__")):
        if inspect.iscoroutinefunction(one) or inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise InputError(
                f"watch: {getattr(function, '__qualname__', type(function).__name__)} is async or yields, so it would "
                "never run; give a plain function of a round's row"
            )
