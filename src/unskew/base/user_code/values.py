"""Values of a user's modules that their files do not show: set by a script, read from the environment, computed.

A file counts by its content, so that what it says itself (`ALPHA = 0.1`) need not count again. What it does not say is
the current value of a name: one that was set from outside (`config.ALPHA = 0.3`), or computed when the file was loaded
(`float(os.environ["ALPHA"])`). What runs change themselves, such as a counter or a cache, is no setting: `calls.py`
takes the value from before the run instead.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import importlib.util
import logging
import numbers
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unskew.base.glance import glance
from unskew.base.registry import Component
from unskew.base.torch_private import own_buffers, own_parameters
from unskew.base.user_code.description import Description
from unskew.base.user_code.files import is_loose, is_own

_PLAIN = (
    type(None),
    bool,
    numbers.Number,
    str,
    bytes,
    bytearray,
    range,
    slice,
    torch.dtype,
    torch.device,
    enum.Enum,
    np.generic,
)
_STATE = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator, logging.Logger)
"""What changes by being used, or belongs to the process."""
_CONTAINERS = (list, tuple, set, frozenset, deque)
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_OF_PYTHON = frozenset(vars(types.ModuleType("")).keys()) | {
    "__file__", "__cached__", "__path__", "__builtins__", "__annotations__", "__all__", "__warningregistry__",
    "__conditional_annotations__",
}  # fmt: skip
_FLEETING = {
    "time", "datetime", "date", "now", "today", "perf_counter", "monotonic", "uuid", "uuid1", "uuid4", "getpid",
    "id", "hash", "object", "repr", "tempfile", "mkdtemp", "gettempdir", "gethostname", "hostname", "socket",
    "platform", "urandom", "secrets", "threading", "get_ident", "getcwd", "cwd", "abspath", "resolve",
    "expanduser", "home", "getuser", "subprocess", "check_output", "cpu_count", "device_count", "get_num_threads",
    "initial_seed", "empty", "empty_like",
}  # fmt: skip
"""What code names whose result differs from process to process, or from machine to machine."""
_DEPTH = 12
_UNKNOWN = object()
"""Of what cannot be said."""


@dataclass
class Source:
    """What a file says of its names."""

    literals: dict[str, Any] = field(default_factory=dict)
    """By name, those of classes as `Class.name`: a value that is written there."""
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By name: the module that it comes from, as it is written, and what it is called there."""
    fleeting: set[str] = field(default_factory=set)
    """Names whose values differ from process to process by nature: times, places, random numbers."""


def read_source(text: bytes) -> Source:
    """What a file says of the names on its upper level, and in its classes."""
    found = Source()
    with contextlib.suppress(SyntaxError, ValueError):
        whole = ast.parse(text)
        makers = {str(getattr(node, "name", "")) for node in ast.walk(whole) if _makes_fleeting(node)}
        _read_names(whole, "", found, makers)
    return found


def _makes_fleeting(node: Any) -> bool:
    """Whether who calls this function or class gets something that differs from process to process."""
    if isinstance(node, ast.ClassDef):
        return any(map(_makes_fleeting, node.body))
    begins = ("__init__", "__new__", "__post_init__")
    return isinstance(node, ast.FunctionDef) and node.name in begins and _is_fleeting(node, set())


def _is_fleeting(node: ast.AST, makers: set[str]) -> bool:
    asked = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
    named = {getattr(part, "id", getattr(part, "attr", "")) for function in asked for part in ast.walk(function)}
    return bool(named & (_FLEETING | makers)) or any(getattr(one, "attr", "") == "argv" for one in ast.walk(node))


def _read_names(scope: ast.Module | ast.ClassDef, prefix: str, found: Source, makers: set[str]) -> None:
    for node in _list_statements(scope.body):
        if isinstance(node, ast.ClassDef):
            _read_names(node, f"{prefix}{node.name}.", found, makers)
        elif isinstance(node, ast.ImportFrom):
            home = "." * node.level + (node.module or "")
            found.imported.update({alias.asname or alias.name: (home, alias.name) for alias in node.names})
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name, value in _pair(target, node.value):
                    _read_value(f"{prefix}{name}", value, found, makers)


def _list_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of branches, too."""
    for node in body:
        yield node
        for inside in ("body", "orelse", "finalbody") if isinstance(node, (ast.If, ast.Try, ast.With)) else ():
            yield from _list_statements(getattr(node, inside, []))
        for handler in node.handlers if isinstance(node, ast.Try) else ():
            yield from _list_statements(handler.body)


def _pair(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Each name and its value, of `a, b = 1, 2` too."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, part in zip(target.elts, value.elts, strict=False):
            yield from _pair(each, part)


def _read_value(name: str, value: ast.expr, found: Source, makers: set[str]) -> None:
    try:
        found.literals[name] = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        found.literals.pop(name, None)
        if _is_fleeting(value, makers):
            found.fleeting.add(name)


def list_values(module: types.ModuleType, source: Source) -> dict[str, Any]:
    """What a module holds beyond what its file says, by name."""
    return dict(_Lister(module, source).walk(dict(vars(module)), ""))


class _Lister:
    def __init__(self, module: types.ModuleType, source: Source) -> None:
        self._module, self._source = module.__name__, source
        self._code = Description()
        self._package = module.__package__ or ""
        self._folders = Path(module.__file__ or "").resolve().parents[:3]
        self._open: set[int] = set()

    def walk(self, values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in sorted(values.items()):
            of_python = name in _OF_PYTHON or (prefix and name.startswith(("__", "_abc_")))
            if not of_python and f"{prefix}{name}" not in self._source.fleeting:
                with contextlib.suppress(Exception):  # whatever an object has against being looked at
                    yield from list(self._look(f"{prefix}{name}", value))

    def _look(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if self._is_written(name, value):
            return
        if isinstance(value, type) and value.__module__ == self._module and value.__qualname__ == name:
            inside = dict(vars(value))
            if issubclass(value, Component):  # its registry names it, and its options count by themselves
                inside = {key: inside[key] for key in inside.keys() - {"name", "summary"} - _list_options(value)}
            yield from self.walk(inside, f"{name}.")
        elif not self._is_its_own(value, name):
            said = self._describe(value)
            if said is not _UNKNOWN:
                yield name, said

    def _is_written(self, name: str, value: Any) -> bool:
        """Whether the file itself says so: it stands there, or is imported from where it counts."""
        if name in self._source.literals:
            return bool(self._describe(self._source.literals[name]) == self._describe(value))
        if name in self._source.imported:
            home, own = self._source.imported[name]
            with contextlib.suppress(ImportError, ValueError):
                origin = sys.modules.get(importlib.util.resolve_name(home, self._package))
                return getattr(origin, own, _UNKNOWN) is value
        return False

    def _is_its_own(self, value: Any, name: str) -> bool:
        """Whether a function is what the file defines under this name, and holds nothing."""
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if not isinstance(function, types.FunctionType):
            return False
        if function.__code__.co_filename.startswith("<") and not is_loose(function):
            return True  # made by dataclass and the like
        holds = set(function.__code__.co_freevars) - {"__class__"} or vars(function)
        return function.__module__ == self._module and function.__qualname__ == name and not holds

    def _describe(self, value: Any) -> Any:
        """Plain text and numbers in tuples."""
        if isinstance(value, _PLAIN):
            return type(value).__name__, self._move(value) if isinstance(value, str) else repr(value)
        if isinstance(value, PurePath):
            return "path", self._move(str(value))
        if isinstance(value, (types.ModuleType, *_STATE)):
            return _UNKNOWN
        if id(value) in self._open or len(self._open) >= _DEPTH:
            return "again"
        self._open.add(id(value))
        try:
            return self._describe_parts(value)
        finally:
            self._open.discard(id(value))

    def _move(self, text: str) -> str:
        """A project may be moved, with what lies a folder or two above the module."""
        for up, folder in enumerate(self._folders):
            if text == str(folder) or text.startswith(f"{folder}/"):
                return repr("../" * up + text[len(str(folder)) :])
        return repr(text)

    def _describe_parts(self, value: Any) -> Any:
        if isinstance(value, (Tensor, np.ndarray)):
            return glance(value)
        if isinstance(value, (types.FunctionType, type, *_BUILT_IN)):
            return self._describe_code(value)
        if isinstance(value, types.MethodType):
            return "method", self._describe(value.__func__), self._describe(value.__self__)
        if isinstance(value, functools.partial):
            return "partial", *map(self._describe, (value.func, value.args, value.keywords))
        if isinstance(value, (staticmethod, classmethod)):
            return type(value).__name__, self._describe(value.__func__)
        if isinstance(value, Mapping):
            return self._list_known((self._describe(key), self._describe(item)) for key, item in value.items())
        if isinstance(value, _CONTAINERS):
            said = [self._describe(item) for item in value]
            said = sorted(said, key=repr) if isinstance(value, (set, frozenset)) else said
            return type(value).__name__, *("?" if one is _UNKNOWN else one for one in said)
        if isinstance(value, nn.Module):
            held = {name: item for name, item in vars(value).items() if not name.startswith("_")}
            held |= {**own_parameters(value), **own_buffers(value), **dict(value.named_children())}
            return type(value).__qualname__, self._describe(held)
        if isinstance(value, types.SimpleNamespace) or hasattr(type(value), "_get_kwargs") or is_own(type(value)):
            return type(value).__qualname__, self._describe(_list_attributes(value))  # argparse's namespace, too
        return _UNKNOWN

    def _describe_code(self, value: Any) -> Any:
        name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if isinstance(value, _BUILT_IN) or not is_own(value):
            return name
        if is_loose(value):
            return self._code.of(value)
        if isinstance(value, type):
            return "class", value.__qualname__  # its file counts
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        about = [*cells, value.__defaults__, value.__kwdefaults__, vars(value)]
        return "function", value.__qualname__, self._describe(about)

    @staticmethod
    def _list_known(pairs: Iterator[tuple[Any, Any]]) -> tuple[tuple[Any, Any], ...]:
        return tuple(pair for pair in pairs if _UNKNOWN not in pair)


def _list_options(cls: type[Component]) -> set[str]:
    return {one.name for one in fields(cls)} if is_dataclass(cls) else set()


def _list_attributes(value: Any) -> dict[str, Any]:
    slots = [vars(cls).get("__slots__", ()) for cls in type(value).__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    own = {name: getattr(value, name, None) for name in names if not name.startswith("__")}
    return {**own, **getattr(value, "__dict__", {})}


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not _UNKNOWN
    except ValueError:
        return False
