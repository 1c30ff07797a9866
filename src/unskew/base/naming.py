"""Which names a class may define: one that is nearly a hook's is a slip, and is refused when the class is made."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic.fields import FieldInfo

from unskew.base.errors import DeclarationError

P = TypeVar("P")
NEAR = 0.8
"""How alike (difflib's ratio) two names are that somebody may have mixed up."""


def helper(part: P) -> P:
    """Declares a public function (or property, static or class method) that nothing but the class itself calls."""
    function: Any = _function_of(part)
    function.__unskew_helper__ = True
    return part


def is_helper(value: Any) -> bool:
    """Whether it was declared so."""
    return getattr(_function_of(value), "__unskew_helper__", False) is True


def is_deliberate(value: Any) -> bool:
    """Whether nobody writes it by a slip: a declared helper, or an option that is declared with `param`."""
    return is_helper(value) or isinstance(value, FieldInfo)


def _function_of(part: Any) -> Any:
    """What a property, a static, class or cached method is made of."""
    for inside in ("__func__", "fget", "func"):
        if (found := getattr(part, inside, None)) is not None:
            return found
    return part


def find_near(name: str, known: Iterable[str]) -> str | None:
    """The name that was meant, if one is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=NEAR)
    return found[0] if found else None


def check_hooks(cls: type) -> None:
    """Refuses a public name of a class that is nearly, but not quite, one of its base classes' in this package.

    Also hooks that cannot be called as the package does.
    """
    check_signatures(cls)
    bases = [base for base in cls.__mro__[1:] if base.__module__.startswith("unskew.")]
    known = {name for base in bases for name in vars(base) if not name.startswith("_")} - {"name", "summary"}
    for name, value in public_names(cls):
        free = name in known or is_deliberate(value) or is_class_var(cls, name)
        near = None if free else find_near(name, known)
        if near and not any(name in vars(base) for base in cls.__mro__[1:]):
            raise DeclarationError(
                f"{cls.__name__}.{name} is never called; did you mean {near}? "
                f"A function of your own: _{name}, or decorate it with unskew.helper"
            )


def check_signatures(cls: type) -> None:
    """Refuses hooks that are no functions, or do not take what the package calls them with."""
    for name, value in vars(cls).items():
        if name.startswith("_") and name not in ("__call__", "__init__"):
            continue
        bases = [vars(base).get(name) for base in cls.__mro__[1:] if base.__module__.startswith("unskew.")]
        hook = next((found for found in bases if found is not None), None)
        if inspect.isfunction(hook):
            _check_hook(cls, name, value, hook)


def _check_hook(cls: type, name: str, value: Any, hook: Any) -> None:
    asked = [each for each in inspect.signature(hook).parameters.values() if each.default is each.empty]
    takes = [each.name for each in asked if each.kind is each.POSITIONAL_OR_KEYWORD]
    found = getattr(cls, name)
    if not callable(found):
        raise DeclarationError(
            f"{cls.__name__}.{name} must be a function, {name}({', '.join(takes)}); got {_short(value)}"
        )
    if isinstance(value, (staticmethod, classmethod)):
        takes = takes[1:]
    try:
        inspect.signature(found).bind(*takes)
    except TypeError:
        raise DeclarationError(
            f"{cls.__name__}.{name} must take ({', '.join(takes)}), got {inspect.signature(found)}"
        ) from None
    except ValueError:  # a function that does not say what it takes
        return


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def is_class_var(cls: type, name: str) -> bool:
    """Whether the class annotates the name as `ClassVar`: no option, and written on purpose."""
    hint = vars(cls).get("__annotations__", {}).get(name)
    return "ClassVar" in (hint if isinstance(hint, str) else repr(hint))


def public_names(cls: type) -> Iterator[tuple[str, Any]]:
    """What the class itself defines or annotates, with values (None where it has none)."""
    own = dict.fromkeys(vars(cls).get("__annotations__", {})) | dict(vars(cls))
    return ((name, value) for name, value in own.items() if not name.startswith("_"))
