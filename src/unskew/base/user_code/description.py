"""Describes code that no file can stand for: of scripts and notebooks, made inside functions, edited since."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import pickle
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import torch

from unskew.base.registry import Component
from unskew.base.user_code.code_objects import list_code_imports, take_apart
from unskew.base.user_code.files import digest, is_loose, is_own

_PLUGIN = re.compile(r"(?<=unskew_plugin_).*")
"""What a plugin's module is called depends on where it lies; its file counts."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Listener:
    """Hears what described code uses; this one makes nothing of it."""

    def add(self, used: Any) -> None:
        """A class, function or module."""

    def add_import(self, name: str) -> None:
        """A module that code imports when it runs."""

    def note_draws(self, code: CodeType, place: str) -> None:
        """Code that may make random generators."""


class Description:
    """Says what a class or function does, down to the last value that its code names."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener or Listener()
        self._said: dict[int, tuple[int, Any]] = {}
        """What was said, by its place in memory, which nothing else may take meanwhile; with its number."""

    def of(self, value: Any, whole: bool = False) -> Any:
        """Plain text and numbers in tuples; `whole`: in any case, not only what stands in no file."""
        if type(value) in _PLAIN:
            return type(value).__name__, repr(value)
        if isinstance(value, ModuleType):
            self._listener.add(value)
            return "module", value.__name__
        if id(value) in self._said:
            return "again", self._said[id(value)][0]
        self._said[id(value)] = len(self._said), value
        if isinstance(value, (type, FunctionType)):
            return self._of_code(value, whole)
        if isinstance(value, (staticmethod, classmethod)):
            return type(value).__name__, self.of(value.__func__, whole)
        if isinstance(value, property):
            return "property", *(self.of(each, whole) for each in (value.fget, value.fset))
        if isinstance(value, MethodType):
            return "method", self.of(value.__func__), self.of(value.__self__)
        if isinstance(value, functools.partial):
            return "partial", self.of(value.func), self.of(value.args), self.of(value.keywords)
        return self.of(type(value)), *self._of_content(value, whole)

    def _of_content(self, value: Any, whole: bool) -> Iterator[Any]:
        """What an object holds."""
        if isinstance(value, (dict, list, tuple, set, frozenset)) and (more := getattr(value, "__dict__", None)):
            yield self.of(dict(more))
        if isinstance(value, defaultdict):
            yield self.of(value.default_factory)
        if isinstance(value, (dict, MappingProxyType)):
            yield from ((self.of(key), self.of(item)) for key, item in value.items())
        elif isinstance(value, (list, tuple)):
            yield from map(self.of, value)
        elif isinstance(value, (set, frozenset)):
            yield from sorted(repr(self.of(item)) for item in value)
        elif isinstance(inside := inspect.getattr_static(value, "__wrapped__", None), FunctionType):
            yield self.of(inside, whole)  # functools.cache
        else:
            yield self._of_state(value)

    def _of_state(self, value: Any) -> Any:
        before = dict(self._said)
        with contextlib.suppress(Exception):  # whatever an object has against being written down
            _Pickler(text := io.BytesIO(), self).dump(value)
            return digest(text.getvalue())
        self._said = before  # what was said on the way is not in the text
        with contextlib.suppress(Exception):
            if held := vars(value):
                return self.of(dict(held))
        return show_uncopied(value)

    def of_namespace(self, values: dict[str, Any], module: str) -> Any:
        """All that a module defines itself."""
        own = {
            name: value
            for name, value in values.items()
            if not name.startswith("__") and getattr(value, "__module__", module) == module
        }
        return [(name, self.of(value, whole=True)) for name, value in sorted(own.items())]

    def _of_code(self, value: Any, whole: bool) -> Any:
        name = _PLUGIN.sub("", value.__module__ or ""), value.__qualname__
        if not whole and not is_loose(value):
            self._listener.add(value)
            return name
        if isinstance(value, type):
            kind = [self.of(type(value))] if is_loose(type(value)) else []  # a metaclass of the user's
            return *name, *kind, *map(self.of, value.__bases__), *self._of_members(value)
        for imported in list_code_imports(value.__code__):
            self._listener.add_import(imported)
        self._listener.note_draws(value.__code__, value.__module__)
        shape, about = take_apart(value)
        beside = [self.of(vars(value))] if vars(value) else []  # what a decorator kept, such as __wrapped__
        return *name, shape, *map(self.of, about), *beside

    def _of_members(self, cls: type) -> Iterator[Any]:
        # the values of options are the component's own; those of other classes are code
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        options = {field.name for field in fields} if issubclass(cls, Component) else set()
        if not issubclass(cls, Component):
            yield from ((field.name, self.of(field.default_factory)) for field in fields)
        for name, field in (vars(cls).get("__pydantic_fields__") or {}).items():
            yield name, self.of(field.default), self.of(field.default_factory)
        for name, value in sorted(vars(cls).items()):
            made = name.startswith(("__", "_abc_")) and not (
                isinstance(value, FunctionType) and value.__module__ == cls.__module__
                and value.__code__.co_filename != "<string>" and "pydantic" not in value.__code__.co_filename
            )  # fmt: skip
            if not made and name not in options:
                yield name, self.of(value, whole=True)


class _Pickler(pickle.Pickler):
    """Writes objects down by what they are made of: code as its description, tensors by their values."""

    def __init__(self, text: io.BytesIO, description: Description) -> None:
        super().__init__(text)
        self._description = description

    def reducer_override(self, value: Any) -> Any:
        """What is written instead: torch's own way names a tensor's place in memory, pickle's the name of a class."""
        if isinstance(value, FunctionType) or (isinstance(value, type) and is_own(value)):
            return tuple, ((repr(self._description.of(value)),),)
        if isinstance(value, ModuleType):
            return tuple, (("module", value.__name__),)
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        value = value.to_dense() if value.layout is not torch.strided else value
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return tuple, ((str(value.dtype), tuple(value.shape), numbers.tobytes()),)


def show_uncopied(value: Any) -> Any:
    """What an object that cannot be copied shows of what it holds."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, struct.Struct):
        return value.format
    with contextlib.suppress(Exception):
        return re.sub("0x[0-9a-f]+", "", repr(value))
    return ()
