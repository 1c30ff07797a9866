"""What the class of a method may define, checked when it is made; and what it declares, checked before a run.

A public name is a slot, a declaration, an option, something of the base class, or a declared helper (`unskew.helper`).
Anything else would be ignored without a word: `def uplaod` would run as FedAvg.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unskew.base.errors import DeclarationError, InputError, one_line
from unskew.base.naming import find_near, is_class_var, is_deliberate, is_helper, public_names
from unskew.base.once import warn_once
from unskew.core.division import Division
from unskew.core.reducers import check_reducers
from unskew.core.slots import DECLARATIONS, NAMES, SLOTS, overrides, owner_of

if TYPE_CHECKING:
    from unskew.core.method import Method
    from unskew.core.net import Names

log = logging.getLogger(__name__)
RENAMED = {
    "proximal": "correction(c, params, batch), a tree that is added to the gradient; a term says `proximal = True`",
    "merge_personal": "receive(c)",
    "outer_terms": "loss_terms(); in a slot, c.terms",
}
"""Slots of earlier versions, and what they are called now."""
KNOWN = (*NAMES, *DECLARATIONS)
_CALLS = {slot.name: slot.call for slot in SLOTS}

# ------------------------------------------------------------------------------------------ when a class is made


def check_class(cls: type, base: type) -> None:
    """Refuses what a subclass of `base` (Method) defines and nothing would ever use."""
    for name, value in public_names(cls):
        annotated = name in vars(cls).get("__annotations__", {}) and not is_class_var(cls, name)
        if name in RENAMED and not is_helper(value):
            raise DeclarationError(f"{cls.__name__}.{name} was renamed; define {RENAMED[name]}")
        if annotated:
            _check_option(cls, base, name, value)
        elif name in NAMES:
            _check_slot(cls, name, value)
        elif not (hasattr(base, name) or _is_declared(cls, name)):
            raise DeclarationError(_refuse(cls, name, value))
    _check_mixins(cls, base)


def _check_option(cls: type, base: type, name: str, value: Any) -> None:
    if name in KNOWN and name != "division":  # which part is personal may be an option
        what = "slot" if name in NAMES else "declaration"
        raise DeclarationError(f"{cls.__name__}.{name} is an option that hides the {what} of this name; rename it")
    near = None if is_deliberate(value) or hasattr(base, name) else find_near(name, KNOWN)
    if near:
        raise DeclarationError(
            f"{cls.__name__}.{name} is an option as it is annotated; did you mean {near}? "
            f"An option of this name is declared with param({name}: … = param(default=…, doc=…))"
        )


def _check_slot(cls: type, name: str, value: Any) -> None:
    """A slot is a function that takes what the loop gives it."""
    function = getattr(cls, name)
    if not callable(function):
        raise DeclarationError(f"{cls.__name__}.{name} must be a function, {_CALLS[name]}; got {value!r}")
    takes = _CALLS[name].partition("(")[2].rstrip(")")
    count = len(takes.split(",")) if takes else 0
    bound = not isinstance(value, (staticmethod, classmethod))
    try:
        inspect.signature(function).bind(*[None] * (count + bound))
    except TypeError:
        raise DeclarationError(
            f"{cls.__name__}.{name} must take ({'self, ' * bound}{takes}), got {inspect.signature(function)}"
        ) from None
    except ValueError:  # a function that does not say what it takes
        return


def _is_declared(cls: type, name: str) -> bool:
    """Whether the name is a helper, here or where it was first defined, or a `ClassVar`."""
    return any(
        is_helper(vars(kind).get(name)) or (name in vars(kind) and is_class_var(kind, name)) for kind in cls.__mro__
    )


def _refuse(cls: type, name: str, value: Any) -> str:
    near = find_near(name, KNOWN)
    meant = f"did you mean {near}?" if near else "the slots are in CONTRIBUTING.md."
    if callable(getattr(cls, name)) or isinstance(value, property) or hasattr(value, "__get__"):
        return (
            f"{cls.__name__}.{name} is no slot, so nothing would call it; {meant} "
            f"A function of your own: _{name}, or decorate it with unskew.helper"
        )
    return (
        f"{cls.__name__}.{name} is neither a declaration nor an option, so nothing would read it; {meant} "
        f"A constant of your own: _{name}, or annotate it, {name}: ClassVar[…] = …"
    )


def _check_mixins(cls: type, base: type) -> None:
    """Classes beside the method may hold whatever they like, but nothing that is nearly a slot."""
    for mixin in cls.__mro__[1:]:
        if issubclass(mixin, base) or issubclass(base, mixin):
            continue
        for name, value in public_names(mixin):
            near = None if name in KNOWN or is_deliberate(value) else find_near(name, KNOWN)
            if near:
                raise DeclarationError(f"{cls.__name__}: {mixin.__name__}.{name} is no slot; did you mean {near}?")


# -------------------------------------------------------------------------------------------------- before a run

_CHOICES: dict[str, tuple[Any, ...]] = {
    "output": ("global", "personal", "both", "tuned"),
    "buffer_policy": (None, "average", "local", "reset"),
}
_EXAMPLES = {"personal": '("head.*",)', "frozen": '("head.*",)', "offers": '("prototypes",)',
             "ignores": '("local.epochs",)'}  # fmt: skip


def check_declarations(method: Method) -> None:
    """Refuses declarations whose values mean nothing; `method` may be a property's owner that fails."""
    who = method.name or type(method).__name__
    for name in DECLARATIONS:
        try:
            value = getattr(method, name)
        except InputError:
            raise
        except Exception as error:  # a plugin's property
            raise InputError(f"{who}.{name} fails: {type(error).__name__}: {one_line(error)}") from error
        if (expected := _judge(name, value)) is not None:
            raise InputError(f"{who}.{name} must be {expected}, got {value!r}")
    check_reducers(who, {**method.reducers, **method.survey_reducers})


def check_idle(method: Method) -> None:
    """Refuses slots from outside the package that no run with these declarations calls.

    A wrapper's may be of use around another method: there it is said.
    """
    from unskew.core.wrapper import Wrapper  # which needs this file

    idle = dict.fromkeys(("survey", "digest", "brief"), "there is no survey; declare survey_reducers, such as "
                         '{"counts": reducers.total}') if not method.survey_reducers else {}  # fmt: skip
    if method.output == "global":
        idle["personalise"] = 'output is "global"; declare output = "tuned", "personal" or "both"'
    for slot, why in idle.items():
        if not _is_theirs(type(method), slot):
            continue
        if not isinstance(method, Wrapper):
            raise InputError(f"{method.name}.{slot} would never be called: {why}")
        warn_once(log, f"{method.name}.{slot} is not called around {method.inner}: {why}")


def warn_silent(method: Method) -> None:
    """Says which of a user's slots have no effect, whatever the data."""
    owner = owner_of(method, "correction")
    if _is_theirs(type(owner), "correction") and _returns_nothing(type(owner).correction):
        what = "never returns anything, so that nothing is added to the gradient (is a return missing?)"
        warn_once(log, f"{owner.name}.correction {what}")
    if method.survey_reducers and not overrides(method, "survey"):
        what = "declares survey_reducers and has no survey, so that nothing is sent before training"
        warn_once(log, f"{method.name} {what}; define survey(c)")


def _is_theirs(kind: type, slot: str) -> bool:
    """Whether the class that defines a slot is from outside the package."""
    owner = next(base for base in kind.__mro__ if slot in vars(base))
    return owner.__module__.partition(".")[0] != "unskew"


def _returns_nothing(function: Any) -> bool:
    """Whether all that a plain function can return is None."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return False
    steps = list(dis.get_instructions(code))
    return all(
        before.opname == "LOAD_CONST" and before.argval is None
        for before, step in itertools.pairwise(steps)
        if step.opname == "RETURN_VALUE"
    ) and all(step.argval is None for step in steps if step.opname == "RETURN_CONST")


_SERVER_MAKES = ("digest", "update", "publish")
"""Slots with which a server can make every part of its model."""


def check_output(method: Method) -> None:
    """Refuses to report a global model of which clients keep a part, so that it stays as it was initialised."""
    from unskew.core.wrapper import walk_nested  # which needs this file

    if method.output == "personal" or any(overrides(method, slot) for slot in _SERVER_MAKES):
        return
    for nested in walk_nested(method):
        own = [pattern for pattern in nested.personal if pattern not in nested.frozen]
        if own and nested.output == "global":
            raise InputError(
                f"{nested.name}: nobody trains {', '.join(own)} of the global model that it reports, as each client "
                'keeps its own (personal); declare output = "personal", or "both" if the server trains that part itself'
            )


def _judge(name: str, value: Any) -> str | None:
    """What was expected; None if it is that."""
    if name in _EXAMPLES:
        good = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        return None if good else f"a tuple of strings such as {_EXAMPLES[name]}"
    if name in _CHOICES:
        return None if value in _CHOICES[name] else "one of " + ", ".join(map(repr, _CHOICES[name]))
    if name == "refuses":
        good = isinstance(value, Mapping) and all(isinstance(item, str) for each in value.items() for item in each)
        return None if good else 'a dict such as {"local.optimiser": "the reason"}'
    if name in ("reducers", "survey_reducers"):
        return None if isinstance(value, Mapping) else 'a dict such as {"delta": reducers.mean}'
    if name == "stacked_tolerance":
        return None  # core/tolerance.py reads it, of terms and processors too
    if name == "division":
        return None if isinstance(value, Division) else "a Division (unskew.registries.divisions)"
    return None if isinstance(value, bool) else "True or False"


def check_patterns(method: Method, names: Names) -> None:
    """Refuses patterns of parameters that match none; `@norm` may, in a network without such layers."""
    for what in ("personal", "frozen"):
        for pattern in getattr(method, what):
            if not names.match((pattern,)) and pattern not in ("@norm", "@batchnorm"):
                known = ", ".join(names.params[:6])
                raise InputError(
                    f"{method.name}.{what}: no parameter matches '{pattern}'; the model has {known}"
                    + (", …" if len(names.params) > 6 else "")
                )
