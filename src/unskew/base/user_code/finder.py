"""Finds the user's code that components use, by readable names, and the generators in it that have no seed."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from unskew.base.errors import InputError
from unskew.base.once import warn_once
from unskew.base.registry import Component
from unskew.base.user_code.calls import list_settings
from unskew.base.user_code.code_objects import draws_unseeded, list_codes, mentions
from unskew.base.user_code.description import Description, Listener
from unskew.base.user_code.files import Files, digest, is_loose, is_users
from unskew.base.user_code.imports import files_of, find_file, gather, walk_imports

log = logging.getLogger(__name__)

_unseeded: set[str] = set()
"""Functions that make generators without a seed."""


def find(components: Iterable[Component | None]) -> dict[str, str]:
    """Hashes of the code of the user's that these components use, nested ones included, by readable names."""
    finder = Finder()
    for component in _walk(components):
        for cls in type(component).__mro__:
            finder.add(cls)
        for used in _ask_used(component):
            finder.add(used)
    _unseeded.update(finder.unseeded)
    return {**_name_files(finder.files), **finder.loose}


def say_unseeded() -> None:
    """Warns of code, asked for since the last time, that draws other numbers in every run."""
    for name in sorted(_unseeded):
        line = f"{name} makes a random generator without a seed, so that no run can be repeated"
        warn_once(log, f"{line}; take c.rng(purpose) or s.rng(purpose), or give it a seed")
    _unseeded.clear()


def names_attribute(components: Iterable[Component | None], name: str) -> bool:
    """Whether code of the user's that these components use names this attribute; that of a script only in classes."""
    for component in _walk(components):
        for cls in type(component).__mro__:
            module = sys.modules.get(cls.__module__)
            if not (is_users(module) or is_loose(cls)):
                continue
            own = [getattr(item, "__func__", getattr(item, "fget", item)) for item in vars(cls).values()]
            beside = vars(module).values() if is_users(module) else ()
            if any(isinstance(each, FunctionType) and mentions(each.__code__, name) for each in (*own, *beside)):
                return True
    return False


def _ask_used(component: Component) -> tuple[Any, ...]:
    used: object = component.code_used()
    if not isinstance(used, (tuple, list)):
        raise InputError(
            f"{component.name}.code_used must return a tuple of modules, classes and functions, got {used!r}"
        )
    return tuple(used)


def _walk(components: Iterable[Any]) -> Iterator[Component]:
    for component in components:
        if isinstance(component, Component):
            yield component
            yield from _walk(getattr(component, field.name) for field in dataclasses.fields(component))
        elif isinstance(component, (list, tuple)):
            yield from _walk(component)


def _name_files(files: Files) -> dict[str, str]:
    """Each file's name; with as many of its folders as tell it from the others."""
    names: dict[str, str] = {}
    for path, known in sorted(files.items()):
        length = 1
        while any(other != path and other.parts[-length:] == path.parts[-length:] for other in files):
            length += 1
        names["/".join(path.parts[-length:])] = known
    return names


class Finder(Listener):
    """Collects what is the user's: files, and by name what stands in none that could count whole."""

    def __init__(self) -> None:
        self.files: Files = {}
        self.loose: dict[str, str] = {}
        self._added: set[int] = set()
        self._listed: set[str] = set()
        self.unseeded: set[str] = set()
        """Functions that make generators of other numbers each time."""

    def add(self, used: Any) -> None:
        """A class, function or module that a run uses."""
        if id(used) in self._added:
            return
        self._added.add(id(used))
        module = used if isinstance(used, ModuleType) else sys.modules.get(used.__module__)
        if is_users(module):
            self._add_module(module)  # type: ignore[arg-type]
        name = getattr(used, "__qualname__", "")
        # a class made inside a function may hold values that its file does not show
        if not isinstance(used, ModuleType) and (is_loose(used) or ("<locals>" in name and is_users(module))):
            said = repr(Description(self).of(used, whole=True))
            self.loose[f"{used.__module__}.{name}"] = digest(said.encode())
        elif isinstance(used, type) and not is_users(module):
            for value in vars(used).values():  # what a plugin put into a class of unskew's
                if isinstance(value, FunctionType) and is_users(home := sys.modules.get(value.__module__)):
                    self.files |= files_of(home)  # type: ignore[arg-type]
                elif isinstance(value, FunctionType) and is_loose(value):
                    self.add(value)

    def note_draws(self, code: CodeType, place: str) -> None:
        """Looks for generators without a seed."""
        if draws_unseeded(code):
            self.unseeded.add(f"{code.co_name} ({place}, line {code.co_firstlineno})")

    def add_import(self, name: str) -> None:
        """A module that code imports when it runs."""
        module = sys.modules.get(name)
        if module is not None:
            self.add(module)
        elif (top := sys.modules.get(name.partition(".")[0])) is None or is_users(top):
            for path in find_file(name, Path.cwd()):
                self.files |= gather(path)

    def _add_module(self, module: ModuleType) -> None:
        self.files |= files_of(module)
        for path, one in walk_imports(module):
            if isinstance(one, ModuleType) and one.__name__ not in self._listed:
                self._listed.add(one.__name__)
                for code in list_codes(vars(one).values(), one.__name__):
                    self.note_draws(code, path.name)
                for name, said in sorted(list_settings(one).items()):
                    key = f"{name} in {path.name}"  # a plugin's module is named by where it lies
                    self.loose[key] = digest((self.loose.get(key, "") + repr((name, said))).encode())
