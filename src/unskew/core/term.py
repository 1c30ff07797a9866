"""Loss terms: small frozen components, called `term(c, params, batch, out)` and added to the method's loss."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from unskew.base import seeds
from unskew.base.batch import Output
from unskew.base.errors import InputError, one_line
from unskew.base.registry import Component, Registry
from unskew.base.tree import Tree
from unskew.core.tolerance import USUAL

if TYPE_CHECKING:
    from unskew.base.batch import Batch
    from unskew.core.context import ClientContext
    from unskew.core.method import Method
    from unskew.core.net import Names

EVERYWHERE = {
    "teacher": "what the received model says of a batch: `c.teacher(batch)`",
    "previous": "what the client's model after its last visit says of a batch: `c.predecessor(batch)`",
}
"""What a term can have in any method, if it says that it needs it."""
OFFERED = {
    "prototypes": "global class prototypes in the message",
    "etf_head": "a projector before a fixed simplex classifier",
}
"""What only some methods offer (`Method.offers`)."""


class Term(Component):
    """One extra loss; `out` is the batch's shared forward pass."""

    needs: ClassVar[tuple[str, ...]] = ()
    """What it needs beyond the batch: `teacher`, `previous`, or something that the method must offer."""
    proximal: ClassVar[bool] = False
    """Whether it holds the local model near another one: only such terms give FedSOL's proximal gradient."""
    stacked_tolerance: ClassVar[float] = USUAL
    """How near `stacked` comes to `serial` with it, as a share of the distance moved."""

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The term's value, a scalar."""
        raise TypeError(f"{type(self).__name__} must define __call__(c, params, batch, out)")

    def maps(self, names: Names) -> tuple[str, ...]:
        """Layers whose outputs it wants to find in `out.maps`."""
        return ()


terms: Registry[Term] = Registry("term", Term)


class NotedTerms(tuple[Term, ...]):
    """A visit's terms where somebody's method may forget them: notes whether anybody looked at them."""

    used = False

    def __iter__(self) -> Iterator[Term]:
        self.used = True
        return super().__iter__()

    def __getitem__(self, place: Any) -> Any:
        self.used = True
        return super().__getitem__(place)


def check_terms(method: Method) -> None:
    """Refuses terms that the method cannot use, or whose needs it does not meet."""
    try:
        with seeds.find_draws() as drawn:
            used = method.used_terms()
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a plugin's own_terms
        raise InputError(f"{method.name}.own_terms fails: {type(error).__name__}: {one_line(error)}") from error
    theirs = _find_outside(method) if drawn else None  # else it was another thread
    if theirs is not None:
        raise InputError(
            f"{theirs.name}.own_terms draws from the global generator of {drawn[0]}, so that every process would have "
            "other terms; let an option say what is drawn"
        )
    if used and not method.takes_terms:
        raise InputError(
            f"{method.name} trains no model at its clients, so terms ({used[0]}) have no loss to join; leave them out"
        )
    for term in used:
        if not isinstance(term, Term):
            raise InputError(f"{method.name}.own_terms must give a tuple of terms, got {term!r} in it")
        name = term.name or type(term).__name__
        _check_call(name, term)
        if not isinstance(term.needs, tuple):
            raise InputError(f'term {name}: needs must be a tuple such as ("teacher",), got {term.needs!r}')
        if not isinstance(term.proximal, bool):
            raise InputError(f"term {name}: proximal must be True or False, got {term.proximal!r}")
        for need in term.needs:
            if need not in (*EVERYWHERE, *method.offers):
                what = OFFERED.get(need, f"'{need}'")
                raise InputError(f"term {name} needs {what}, which {method} does not offer; {_advise(need)}")


def _find_outside(method: Method) -> Method | None:
    """The method from outside the package, be it inside others."""
    from unskew.core.wrapper import walk_nested  # which needs this file

    return next((each for each in walk_nested(method) if not type(each).__module__.startswith("unskew.")), None)


def _check_call(name: str, term: Term) -> None:
    """Refuses a term that cannot be called as the loss does."""
    function: Any = type(term).__call__
    if function is Term.__call__:
        raise InputError(f"term {name} must define __call__(self, c, params, batch, out)")
    with contextlib.suppress(ValueError):  # a function that does not say what it takes
        try:
            inspect.signature(function).bind(*[None] * 5)
        except TypeError:
            taken = inspect.signature(function)
            raise InputError(f"term {name}: __call__ must take (self, c, params, batch, out), got {taken}") from None


def _advise(need: str) -> str:
    """Who offers it by default, or what may have been meant."""
    from unskew.core.method import methods  # the base class needs this file

    if found := [name for name in methods if need in _offers(methods.get(name))]:
        return f"use it in {' or '.join(found)}"
    if near := difflib.get_close_matches(need, [*EVERYWHERE, *OFFERED], n=1):
        return f"did you mean {near[0]}?"
    return "no method offers it: let yours declare `offers`"


def _offers(method: type[Method]) -> tuple[str, ...]:
    try:
        return method().offers
    except Exception:  # a wrapper, or a plugin that needs arguments
        return ()
