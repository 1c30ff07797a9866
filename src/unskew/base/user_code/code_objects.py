"""What compiled functions do, name, import and draw."""

from __future__ import annotations

import dis
import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from unskew.base.user_code.files import is_loose

_GENERATORS = ("default_rng", "RandomState", "Random", "SystemRandom", "SeedSequence")


def take_apart(function: FunctionType) -> tuple[Any, tuple[Any, ...]]:
    """What a function does, wherever it stands, and the values it needs: defaults, closure, globals of a script."""
    own = function.__code__
    closure = [_content(cell) for cell in function.__closure__ or ()]
    known = [function.__globals__[word] for word in _list_globals(own) if word in function.__globals__]
    about = function.__defaults__, function.__kwdefaults__, closure, known if is_loose(function) else ()
    return shape_of(own), about


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def shape_of(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, wherever it stands."""

    def plain(value: Any) -> Any:
        if isinstance(value, CodeType):
            return shape_of(value)
        return ("set", *sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)

    sizes = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_name, sizes, names, code.co_code, tuple(map(plain, code.co_consts))


def list_shapes(code: CodeType) -> Iterator[tuple[Any, ...]]:
    """What the code inside a code object does."""
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield shape_of(value)
            yield from list_shapes(value)


def _list_globals(code: CodeType) -> list[str]:
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return sorted(found.union(*(_list_globals(value) for value in code.co_consts if isinstance(value, CodeType))))


def mentions(code: CodeType, name: str) -> bool:
    """Whether code names this attribute or global."""
    inside = (value for value in code.co_consts if isinstance(value, CodeType))
    return name in code.co_names or any(mentions(each, name) for each in inside)


def list_codes(values: Iterable[Any], module: str) -> Iterator[CodeType]:
    """The code of functions and methods that stands in a module's own file."""
    for value in list(values):
        if isinstance(value, type) and value.__module__ == module:
            own = [getattr(item, "__func__", getattr(item, "fget", item)) for item in vars(value).values()]
            yield from list_codes((item for item in own if isinstance(item, FunctionType)), module)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            code = inspect.unwrap(value).__code__
            if code.co_filename == getattr(sys.modules.get(module), "__file__", None):  # not made by a decorator
                yield code


def list_code_imports(code: CodeType) -> list[str]:
    """The modules that a function imports, whole names; `from package import module` may mean one, too."""
    found, steps = set(), list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            found.add(str(step.argval))
        elif step.opname == "IMPORT_FROM":
            base = next(one.argval for one in reversed(steps[:place]) if one.opname == "IMPORT_NAME")
            found.add(f"{base}.{step.argval}")
    inside = (value for value in code.co_consts if isinstance(value, CodeType))
    return sorted(found.union(*map(list_code_imports, inside)))


def draws_unseeded(code: CodeType) -> bool:
    """Whether a function calls one that makes a generator, without any argument."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("PUSH_NULL", "PRECALL", "CACHE")]
    return any(
        step.argval in _GENERATORS and after.opname.startswith("CALL") and after.arg == 0
        for step, after in itertools.pairwise(steps)
    ) or any(draws_unseeded(value) for value in code.co_consts if isinstance(value, CodeType))
